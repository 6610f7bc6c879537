"""Evaluation everybody can check: per-picture predictions, and every figure computed from them alone.

samples (layouts) -> scores -> predictions.parquet -> frame -> measures under weights -> tables -> report
"""

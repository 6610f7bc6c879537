.PHONY: test slow lint format ci

test:
	pytest

slow:
	pytest -m slow

lint:
	ruff check . && ruff format --check . && mypy

format:
	ruff check --fix . && ruff format .

ci:
	.ci/run

"""What a file header gives away, and the audit that refuses a set it solves."""

"""What a person or a program talks to: the `omniaid` command, the REST API and the web page."""

"""The command line: parser, help, suggestions and the commands that are built on Lightning."""

"""One file per Kafka API. Importing the package registers them all: what is not in a file here is not advertised."""

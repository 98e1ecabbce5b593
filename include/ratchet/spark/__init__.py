"""From exact Kafka ranges to a staged, voted slice: reader, decoder, stager and the engines that run them."""

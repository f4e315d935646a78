"""The remoting protocol of a broker: requests of classic clients, over the same parts as gRPC."""

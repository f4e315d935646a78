"""Ports of a broker, and of a replica that follows: certificates, registration, what is carried on to others."""

"""What two stores mean, compared: messages by topic, queue and offset, and what is configured and committed."""

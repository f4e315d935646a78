"""What consumers want of a topic, evaluated where the messages lie: fetches that step over the others."""

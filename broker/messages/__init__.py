"""Messages of a broker: checked, appended and answered; fetched, filtered and looked up."""

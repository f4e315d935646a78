"""Time within a broker: the wheel that all waits hang on, requests that wait, and a clock that is moved by hand."""

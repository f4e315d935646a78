"""What brokers of Apache RocketMQ say to each other: remoting requests and the wire of the log.

`command` is the frame of a request or an answer, `connection` a TCP connection that carries them, `ha` the wire by
which a slave takes its master's log.
"""

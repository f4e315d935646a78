"""`apache.rocketmq.v2.MessagingService`: what the official clients of RocketMQ 5 say, for the broker's own parts.

    method                                          file
    QueryRoute, QueryAssignment                     routes
    Telemetry                                       telemetry
    Heartbeat, NotifyClientTermination              sessions
    SendMessage, EndTransaction, RecallMessage      sending
    ReceiveMessage, AckMessage,
    ChangeInvisibleDuration,
    ForwardMessageToDeadLetterQueue                 receiving
    PullMessage, UpdateOffset, GetOffset,
    QueryOffset                                     pulling
    SyncLiteSubscription                            subscriptions

    service      puts the methods together; errors as clients get them; how long each call takes
    permissions  what each call needs of a user, and how one that is refused is answered
    sessions     who is connected;  subscriptions: what each wants, all of a group the same
    messages     from message to record and back;  checks: names and limits of what is asked
    measurements what clients measure, by services of other names

Nothing else in the broker knows the protocol. Source: v2-protocol.md.
"""

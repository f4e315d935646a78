"""`apache.rocketmq.v2.MessagingService`, the protocol of RocketMQ 5 clients: it calls the broker's own parts.

    method                                          file
    QueryRoute, QueryAssignment                     routes
    Telemetry                                       telemetry
    Heartbeat, NotifyClientTermination              heartbeats
    SendMessage, EndTransaction, RecallMessage      sending
    ReceiveMessage                                  receiving
    AckMessage, ChangeInvisibleDuration,
    ForwardMessageToDeadLetterQueue                 acknowledging
    PullMessage, UpdateOffset, GetOffset,
    QueryOffset                                     pulling
    SyncLiteSubscription                            lite_subscriptions

    service        assembles the methods
    statuses       errors as clients get them
    permissions    the permissions that each call requires, and how a refused call is answered
    client_session the session of one client; sessions: those of all clients
    client_addresses  the addresses that clients get
    client_settings, transaction_checks, diagnostics    what the broker sends over Telemetry
    subscriptions  the filter of each client; all clients of a group need the same
    messages       messages to records and back
    request_checks names and limits of requests
    measurements   metrics that clients send, through services of other names

Nothing else in the broker knows the protocol. Source: v2-protocol.md.
"""

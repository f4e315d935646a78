"""`apache.rocketmq.v2.MessagingService`: what the official clients of RocketMQ 5 say, for the broker's own parts.

    method                                          file
    QueryRoute, QueryAssignment                     routes, with endpoints
    Telemetry                                       telemetry, with settings, transaction_checks, diagnostics
    Heartbeat, NotifyClientTermination              heartbeats
    SendMessage                                     sending, with queue_choice
    EndTransaction, RecallMessage                   transactions, recall; both relayed
    ReceiveMessage                                  receiving
    AckMessage, ChangeInvisibleDuration,
    ForwardMessageToDeadLetterQueue                 acknowledging
    PullMessage, UpdateOffset, GetOffset,
    QueryOffset                                     pulling
    SyncLiteSubscription                            lite

    service      puts the methods together; clients and consumers those of some of these files
    sessions     who is connected;  subscriptions: what each wants, all of a group the same
    messages     from message to record and back, with message_types and property_names
    checks       names and limits of what is asked;  statuses: errors as clients get them
    otlp_metrics, opencensus_metrics                what clients measure, by services of other names

Nothing else in the broker knows the protocol. Source: v2-protocol.md.
"""

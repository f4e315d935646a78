//! The official Rust client of Apache RocketMQ, driven by JSON lines: commands on standard input, replies and events on
//! standard output. driver.py, one folder up, says what they are. The crate has neither push consumers nor recalls, and
//! cannot change how long a message stays invisible.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

/// A simple consumer, with what it asks for at every receive.
type Consumer = Arc<(SimpleConsumer, String, FilterExpression)>;

static NUMBERS: AtomicU64 = AtomicU64::new(1);
static PRODUCERS: LazyLock<Mutex<HashMap<String, Arc<Producer>>>> = LazyLock::new(Default::default);
static CONSUMERS: LazyLock<Mutex<HashMap<String, Consumer>>> = LazyLock::new(Default::default);
/// By number: messages that can be acknowledged.
static RECEIVED: LazyLock<Mutex<HashMap<u64, Arc<MessageView>>>> = LazyLock::new(Default::default);

fn say(line: Value) {
    println!("{line}");
}

fn described(message: MessageView) -> Value {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let body = message.body();
    let mut keys = message.keys().to_vec();
    keys.sort();
    let line = json!({
        "number": number,
        "id": message.message_id(),
        "topic": message.topic(),
        "size": body.len(),
        "md5": format!("{:x}", Md5::digest(body)),
        "body": String::from_utf8_lossy(&body[..body.len().min(64)]),
        "tag": message.tag(),
        "keys": keys,
        "properties": message.properties(),
        "group": message.message_group(),
        "attempt": message.delivery_attempt(),
    });
    RECEIVED.lock().unwrap().insert(number, Arc::new(message));
    line
}

fn text(command: &Value, name: &str) -> String {
    command[name].as_str().unwrap_or_default().to_string()
}

fn client_option(command: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(std::env::args().nth(1).unwrap());
    option.set_enable_tls(false);
    if let (Ok(user), Ok(secret)) = (std::env::var("OFFICIAL_USER"), std::env::var("OFFICIAL_SECRET")) {
        option.set_access_key(user);
        option.set_secret_key(secret);
    }
    if let Some(seconds) = command["await_s"].as_f64() {
        option.set_long_polling_timeout(Duration::from_secs_f64(seconds));
    }
    option
}

async fn producer(command: &Value) -> Result<Value, ClientError> {
    let topics = command["topics"].as_array().unwrap().iter();
    let mut option = ProducerOption::default();
    option.set_topics(topics.map(|topic| topic.as_str().unwrap()).collect());
    let name = text(command, "name");
    let mut client = if command["transactions"] == true {
        let client = name.clone();
        // The checker answers as the message's own property says.
        let check = move |_transaction_id: String, message: MessageView| {
            let commit = message.properties().get("check").is_some_and(|answer| answer == "commit");
            say(json!({"event": "check", "client": client, "message": described(message)}));
            if commit { TransactionResolution::COMMIT } else { TransactionResolution::ROLLBACK }
        };
        Producer::new_transaction_producer(option, client_option(command), Box::new(check))?
    } else {
        Producer::new(option, client_option(command))?
    };
    client.start().await?;
    PRODUCERS.lock().unwrap().insert(name, Arc::new(client));
    Ok(json!({}))
}

async fn simple(command: &Value) -> Result<Value, ClientError> {
    let topic = text(command, "topic");
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(text(command, "group"));
    option.set_topics(vec![topic.clone()]);
    let kind = if command["filter"] == "sql" { FilterType::Sql } else { FilterType::Tag };
    let filter = FilterExpression::new(kind, command["expression"].as_str().unwrap_or("*"));
    let mut client = SimpleConsumer::new(option, client_option(command))?;
    client.start().await?;
    let consumer = Arc::new((client, topic, filter));
    CONSUMERS.lock().unwrap().insert(text(command, "name"), consumer);
    Ok(json!({}))
}

fn producer_of(command: &Value) -> Arc<Producer> {
    PRODUCERS.lock().unwrap()[command["client"].as_str().unwrap()].clone()
}

fn consumer_of(command: &Value) -> Consumer {
    CONSUMERS.lock().unwrap()[command["client"].as_str().unwrap()].clone()
}

fn message_of(command: &Value) -> Result<impl Message, ClientError> {
    let body = text(command, "body").into_bytes();
    let size = command["size"].as_u64().map_or(body.len(), |size| size as usize);
    let body = body.into_iter().cycle().take(size).collect();
    let mut builder = MessageBuilder::builder().set_topic(text(command, "topic")).set_body(body);
    if let Some(tag) = command["tag"].as_str() {
        builder = builder.set_tag(tag);
    }
    if let Some(keys) = command["keys"].as_array() {
        builder = builder.set_keys(keys.iter().map(|key| key.as_str().unwrap()).collect());
    }
    if let Some(properties) = command["properties"].as_object() {
        let pairs: BTreeMap<_, _> = properties.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap())).collect();
        builder = builder.set_properties(pairs.into_iter().collect::<HashMap<_, _>>());
    }
    if let Some(group) = command["message_group"].as_str() {
        builder = builder.set_message_group(group);
    }
    if let Some(at_ms) = command["deliver_at_ms"].as_i64() {
        builder = builder.set_delivery_timestamp(at_ms / 1000);
    }
    if command["transaction"].is_string() {
        builder = builder.enable_transaction();
    }
    builder.build()
}

async fn send(command: &Value) -> Result<Value, ClientError> {
    let (client, message) = (producer_of(command), message_of(command)?);
    let Some(outcome) = command["transaction"].as_str() else {
        let receipt = client.send(message).await?;
        return Ok(json!({"message_id": receipt.message_id(), "recall_handle": ""}));
    };
    let transaction = client.send_transaction_message(message).await?;
    let id = transaction.message_id().to_string();
    match outcome {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => (),
    }
    Ok(json!({"message_id": id, "recall_handle": ""}))
}

async fn receive_some(consumer: &Consumer, count: i32, invisible: f64) -> Result<Vec<MessageView>, ClientError> {
    let (client, topic, filter) = &**consumer;
    let found = client.receive_with(topic, filter, count, Duration::from_secs_f64(invisible)).await;
    match found {
        // To this client nothing is an error.
        Err(error) if code_of(&error) == Some(40401) => Ok(vec![]),
        other => other,
    }
}

async fn receive(command: &Value) -> Result<Value, ClientError> {
    let (count, invisible) = (command["count"].as_i64().unwrap(), command["invisible_s"].as_f64().unwrap());
    let found = receive_some(&consumer_of(command), count as i32, invisible).await?;
    Ok(json!({"messages": found.into_iter().map(described).collect::<Vec<_>>()}))
}

async fn ack(command: &Value) -> Result<Value, ClientError> {
    let message = RECEIVED.lock().unwrap()[&command["number"].as_u64().unwrap()].clone();
    consumer_of(command).0.ack(&*message).await?;
    Ok(json!({}))
}

async fn close(command: &Value) -> Result<Value, ClientError> {
    let name = command["client"].as_str().unwrap();
    let producer = PRODUCERS.lock().unwrap().remove(name);
    if let Some(client) = producer.and_then(Arc::into_inner) {
        client.shutdown().await?;
    }
    let consumer = CONSUMERS.lock().unwrap().remove(name);
    if let Some((client, ..)) = consumer.and_then(Arc::into_inner) {
        client.shutdown().await?;
    }
    Ok(json!({}))
}

/// Send COUNT messages, IN_FLIGHT at a time; say how long each took.
async fn storm(command: &Value) -> Result<Value, ClientError> {
    let client = producer_of(command);
    let left = Arc::new(AtomicU64::new(command["count"].as_u64().unwrap()));
    let begun = Instant::now();
    let mut tasks = vec![];
    for _ in 0..command["in_flight"].as_u64().unwrap() {
        let (client, left, command) = (client.clone(), left.clone(), command.clone());
        tasks.push(tokio::spawn(async move {
            let mut costs = vec![];
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                let one = Instant::now();
                client.send(message_of(&command)?).await?;
                costs.push(one.elapsed().as_secs_f64() * 1e6);
            }
            Ok::<_, ClientError>(costs)
        }));
    }
    let mut costs = vec![];
    for task in tasks {
        costs.extend(task.await.unwrap()?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    costs.sort_by(f64::total_cmp);
    Ok(json!({"seconds": seconds, "costs_us": costs}))
}

/// Receive and acknowledge, one after the other in each of THREADS, until COUNT are done.
async fn drain(command: &Value) -> Result<Value, ClientError> {
    let consumer = consumer_of(command);
    let (count, batch) = (command["count"].as_u64().unwrap(), command["batch"].as_i64().unwrap() as i32);
    let done = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut tasks = vec![];
    for _ in 0..command["threads"].as_u64().unwrap() {
        let (consumer, done) = (consumer.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < count {
                for message in receive_some(&consumer, batch, 60.0).await? {
                    consumer.0.ack(&message).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<_, ClientError>(())
        }));
    }
    for task in tasks {
        task.await.unwrap()?;
    }
    Ok(json!({"seconds": begun.elapsed().as_secs_f64()}))
}

/// The crate tells names of codes, not their numbers: those that the scenarios ask for.
fn code_of(error: &ClientError) -> Option<i32> {
    let (_, name) = error.context().iter().find(|(key, _)| *key == "code")?;
    let codes = [
        ("ILLEGAL_TOPIC", 40002),
        ("ILLEGAL_MESSAGE_TAG", 40004),
        ("ILLEGAL_MESSAGE_PROPERTY_KEY", 40007),
        ("ILLEGAL_FILTER_EXPRESSION", 40010),
        ("INVALID_RECEIPT_HANDLE", 40013),
        ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", 40014),
        ("MESSAGE_NOT_FOUND", 40401),
        ("TOPIC_NOT_FOUND", 40402),
        ("MESSAGE_BODY_TOO_LARGE", 41301),
        ("MESSAGE_PROPERTIES_TOO_LARGE", 43101),
        ("INTERNAL_SERVER_ERROR", 50001),
    ];
    codes.iter().find(|(known, _)| known == name).map(|(_, code)| *code)
}

async fn run(command: Value) {
    let done = match command["do"].as_str().unwrap() {
        "producer" => producer(&command).await,
        "simple" => simple(&command).await,
        "send" => send(&command).await,
        "receive" => receive(&command).await,
        "ack" => ack(&command).await,
        "close" => close(&command).await,
        "storm" => storm(&command).await,
        "drain" => drain(&command).await,
        other => panic!("{other}"),
    };
    say(match done {
        Ok(reply) => json!({"id": command["id"], "reply": reply}),
        Err(error) => json!({"id": command["id"], "error": {
            "type": format!("{:?}", error.kind()), "code": code_of(&error), "text": error.to_string(),
        }}),
    });
}

#[tokio::main]
async fn main() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        tokio::spawn(run(serde_json::from_str(&line).unwrap()));
    }
    std::process::exit(0);
}

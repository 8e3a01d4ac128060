//! Bodies of requests: too large, too slow, too many at once; and connections that do nothing.

use std::process::Command;
use std::time::Duration;

use futures::{SinkExt, StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::client::Client;
use crate::support::process::Process;
use crate::support::{Engine, TestServer, eventually, on_both_engines};

/// More than any request takes, and less than the server's own time limits, which are 30 s and more.
const SOON: Duration = Duration::from_secs(20);

/// Connects, and sends the head of a POST whose body has `length` bytes, and the start of the body.
async fn half_body(client: &Client, path: &str, length: usize, beginning: &[u8]) -> TcpStream {
    half_body_with(client, path, "x-api-key: none", length, beginning).await
}

/// The same with one more header.
async fn half_body_with(client: &Client, path: &str, header: &str, length: usize, beginning: &[u8]) -> TcpStream {
    let address = client.base().replacen("http://", "", 1);
    let mut stream = TcpStream::connect(&address).await.expect("a connection");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the server listens");
    stream.write_all(beginning).await.expect("the server listens");
    stream
}

/// Reads until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = vec![];
    // A connection that is reset was closed, too.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns metadata whose JSON has this many bytes.
fn metadata(bytes: usize) -> Value {
    json!({"x": "y".repeat(bytes - r#"{"x":""}"#.len())})
}

on_both_engines! {
    oversized_metadata_is_refused_by_every_endpoint,
    a_body_without_a_length_is_bounded_like_any_other,
    a_body_that_does_not_arrive_times_out,
    a_body_that_does_not_arrive_delays_no_restart,
    concurrent_bodies_share_one_bound,
    the_bodies_of_one_user_leave_room_for_those_of_others,
    a_user_with_many_websockets_sends_small_messages_over_the_last_ones,
    answers_that_nobody_takes_delay_no_others,
    a_response_to_a_body_that_is_not_read_announces_the_close,
    a_connection_survives_a_refusal_before_a_short_body,
}

async fn oversized_metadata_is_refused_by_every_endpoint(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let large = metadata((64 << 10) + 1);
    let input = json!({"messages": [{"role": "user", "content": "hi"}]});
    let run = json!({"assistant_id": "agent", "input": input, "metadata": large});
    let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": input, "metadata": large});
    let posts = [
        ("/threads".to_owned(), json!({"metadata": large})),
        (alice.path("/runs"), run.clone()),
        (alice.path("/runs/stream"), run.clone()),
        (
            alice.path("/runs"),
            json!({"assistant_id": "agent", "input": input, "config": {"metadata": large}}),
        ),
        ("/runs".to_owned(), run.clone()),
        ("/runs/batch".to_owned(), json!([run])),
        (
            "/assistants".to_owned(),
            json!({"graph_id": "agent", "metadata": large}),
        ),
        ("/runs/crons".to_owned(), cron.clone()),
        (alice.path("/runs/crons"), cron),
    ];
    for (path, body) in posts {
        let text = client.post(&path, body).await.refused(422);
        assert!(text.contains("metadata: is larger than 65536 bytes"), "{path}: {text}");
    }
    let text = client
        .patch(&alice.path(""), json!({"metadata": large}))
        .await
        .refused(422);
    assert!(text.starts_with("metadata: is larger"), "{text}");
    let assistant = client.post("/assistants", json!({"graph_id": "agent"})).await.ok();
    let path = format!("/assistants/{}", assistant["assistant_id"].as_str().expect("an id"));
    client.patch(&path, json!({"metadata": large})).await.refused(422);
    client
        .patch(&alice.path(""), json!({"metadata": metadata(64 << 10)}))
        .await
        .ok();
    assert_eq!(alice.runs().await, Vec::<Value>::new());
}

async fn a_body_without_a_length_is_bounded_like_any_other(server: TestServer) {
    let client = server.client();
    let pieces = (0..64).map(|_| Ok::<_, std::io::Error>(vec![b' '; 64 << 10]));
    let body = reqwest::Body::wrap_stream(stream::iter(pieces));
    let request = client
        .request(Method::POST, "/threads")
        .header("content-type", "application/json")
        .body(body);
    match request.send().await {
        Ok(response) => assert_eq!(response.status(), 413),
        // The server closed the connection while there was more to send.
        Err(error) => assert!(error.is_request(), "{error:?}"),
    }
    // The client may not know yet that the server has closed the connection.
    eventually(async || client.tries(Method::GET, "/ok", None).await.is_ok()).await;
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 0);
}

async fn a_body_that_does_not_arrive_times_out(server: TestServer) {
    server.is_configured("body_timeout_s = 0.1").await;
    let client = server.client();
    let mut half = half_body(&client, "/threads", 100, b"{\"metadata\":").await;
    let answer = timeout(SOON, rest(&mut half)).await.expect("it is not waited for");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("body_timeout"), "{answer}");
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 0);
}

async fn a_response_to_a_body_that_is_not_read_announces_the_close(server: TestServer) {
    let client = server.client();
    let mut half = half_body(&client, "/threads", 1 << 30, b"{").await;
    let answer = timeout(SOON, rest(&mut half)).await.expect("the server closes");
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

async fn a_connection_survives_a_refusal_before_a_short_body(server: TestServer) {
    let nobody = server.is_protected().await.nobody();
    let mut stream = half_body(&nobody, "/threads", 2, b"{}").await;
    let address = nobody.base().replacen("http://", "", 1);
    let next = format!("GET /ok HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(next.as_bytes()).await.expect("the connection is open");
    let answers = timeout(SOON, rest(&mut stream)).await.expect("the server closes");
    assert!(answers.starts_with("HTTP/1.1 401"), "{answers}");
    assert!(answers.contains("HTTP/1.1 200"), "{answers}");
}

async fn a_body_that_does_not_arrive_delays_no_restart(server: TestServer) {
    let client = server.client();
    let mut halves = vec![];
    for path in ["/threads", "/runs/wait", "/store/items", "/threads/search"] {
        halves.push(half_body(&client, path, 100, b"{").await);
    }
    client.post("/threads", json!({})).await.ok();
    timeout(SOON, server.is_stopped_and_started_again())
        .await
        .expect("nobody waits for half bodies");
    for half in &mut halves {
        let answer = rest(half).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), 1);
}

async fn concurrent_bodies_share_one_bound(server: TestServer) {
    server.is_configured("max_body_bytes_total = 2097152").await;
    let client = server.client();
    let large = 2_000_000;
    let half = half_body(&client, "/threads", large, &vec![b' '; large - 1]).await;
    // The server may not have read all of it. A body in one piece with many values needs more than what remains beside it,
    // and holds nothing while it waits for that. A large one would hold a part, and each of the two would wait for the other.
    let values = json!(vec![0; 800]);
    eventually(async || client.post("/threads/count", values.clone()).await.status == 503).await;
    let other = json!({"metadata": metadata(60_000), "supersteps": [{"updates": [{"values": {"messages": "x".repeat(200_000)}}]}]});
    let reply = client.post("/threads", other.clone()).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(reply.body["code"], "bodies_busy");
    assert_eq!(reply.header("retry-after"), Some("1"));
    client.get("/ok").await.ok();
    client.post("/threads/count", json!({})).await.ok();
    // Commands over a socket count among them.
    let thread = client.thread().await;
    let opened = connect_async(client.socket_request(&thread)).await;
    let mut socket = opened.expect("a line").0;
    let said = json!({"id": 1, "method": "agent.getTree", "params": {"x": "y".repeat(200_000)}});
    socket
        .send(Message::text(said.to_string()))
        .await
        .expect("the line is open");
    let heard = loop {
        if let Message::Text(text) = socket.next().await.expect("the line is open").expect("it works") {
            break text.to_string();
        }
    };
    assert!(
        heard.contains("503: The server is busy with the bodies of other requests"),
        "{heard}"
    );
    drop(socket);
    drop(half);
    eventually(async || client.post("/threads", other.clone()).await.status == 200).await;
}

async fn a_user_with_many_websockets_sends_small_messages_over_the_last_ones(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let opens = async || {
        let opened = connect_async(ann.socket_request(&thread)).await;
        opened.expect("a socket").0
    };
    let answer = async |socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>, length: usize| {
        let command = json!({"id": 1, "method": "agent.getTree", "params": {"x": "y".repeat(length)}});
        socket
            .send(Message::text(command.to_string()))
            .await
            .expect("it is open");
        loop {
            let message = socket.next().await.expect("it is open").expect("it works");
            if matches!(message, Message::Text(_) | Message::Close(_)) {
                return message;
            }
        }
    };
    let mut sockets = vec![];
    for _ in 0..16 {
        sockets.push(opens().await);
    }
    let mut last = opens().await;
    assert!(matches!(answer(&mut last, 1000).await, Message::Text(_)));
    let Message::Close(Some(reason)) = answer(&mut last, 100_000).await else {
        panic!("the message is too large");
    };
    assert_eq!(u16::from(reason.code), 1009, "{reason}");
    assert!(reason.reason.contains("65536 bytes"), "{reason}");
    for socket in &mut sockets {
        assert!(matches!(answer(socket, 100_000).await, Message::Text(_)));
    }
    sockets.pop();
    eventually(async || {
        let mut next = opens().await;
        matches!(answer(&mut next, 100_000).await, Message::Text(_))
    })
    .await;
}

async fn the_bodies_of_one_user_leave_room_for_those_of_others(server: TestServer) {
    server.is_configured("max_body_bytes_total = 4194304").await;
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let header = format!("x-api-key: {}", keys.text("ann"));
    let large = 2_000_000;
    let other = json!({"supersteps": [{"updates": [{"values": {"messages": "x".repeat(260_000)}}]}]});
    let mut slow = vec![];
    let refused = async {
        loop {
            // One is enough, unless it had to wait for its share for too long.
            let beginning = vec![b' '; large - 1];
            slow.push(half_body_with(&ann, "/threads", &header, large, &beginning).await);
            if ann.post("/threads", other.clone()).await.status == 503 {
                break;
            }
        }
    };
    timeout(SOON, refused).await.expect("the part of the user is taken");
    for caller in ["bob", "root", "root-of-other"] {
        keys.client(caller).post("/threads", other.clone()).await.ok();
    }
    drop(slow);
    eventually(async || ann.post("/threads", other.clone()).await.status == 200).await;
}

async fn answers_that_nobody_takes_delay_no_others(server: TestServer) {
    server.is_configured("max_answer_bytes = 8388608").await;
    let client = server.client();
    let path = format!("/threads/{}/state", client.thread().await);
    for _ in 0..4 {
        let message = json!({"role": "user", "content": "x".repeat(1_900_000)});
        let update = json!({"values": {"messages": [message]}});
        client.post(&path, update).await.ok();
    }
    let address = client.base().replacen("http://", "", 1).parse().expect("an address");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut untaken = vec![];
    for _ in 0..4 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let mut stream = socket.connect(address).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("the server listens");
        stream.read_u8().await.expect("the answer begins");
        untaken.push(stream);
    }
    // The memory of all answers is taken.
    client.post("/threads/search", json!({})).await.ok();
    drop(untaken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_counts_with_its_parsed_size() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    server.is_configured("max_body_bytes_total = 2097152").await;
    let client = server.client();
    // 20,000 values count as 2.5 MB: with such a body under way there is room for no other.
    let many = format!("{{\"metadata\": {{\"x\": [{}", "0,".repeat(20_000));
    let half = half_body(&client, "/threads", many.len() + 100, many.as_bytes()).await;
    eventually(async || client.post("/threads/count", json!({})).await.status == 503).await;
    drop(half);
    eventually(async || client.post("/threads/count", json!({})).await.status == 200).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_for_new_requests() {
    let folder = tempfile::tempdir().expect("a directory");
    let program = env!("CARGO_BIN_EXE_adjutant");
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 256 && exec \"$0\" --listen 127.0.0.1:0", program])
        .current_dir(folder.path());
    let server = Process::start(command).await;
    let base = server.base().await;
    let client = Client::new(&base);
    let address = base.replacen("http://", "", 1);
    let mut silent = vec![];
    for at in 0..400 {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        match at % 3 {
            0 => {}
            1 => stream
                .write_all(b"GET /ok HTTP/1.1\r\nhost: loc")
                .await
                .expect("the server listens"),
            _ => drop(std::mem::replace(
                &mut stream,
                half_body(&client, "/threads", 100, b"{").await,
            )),
        }
        silent.push(stream);
    }
    for _ in 0..20 {
        // Each on a connection of its own.
        let asked = Client::new(&base);
        timeout(SOON, asked.get("/ok")).await.expect("it is answered").ok();
    }
    let made = timeout(SOON, client.post("/threads", json!({})))
        .await
        .expect("it is answered");
    made.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_beyond_the_limit_is_closed() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    server.is_configured("max_connections = 1").await;
    let viewer = crate::support::viewer::Viewer::of_new(&server);
    let busy = viewer.opens_all().await;
    let other = Client::new(&server.client().base());
    let refused = other.request(Method::GET, "/ok").send().await;
    assert!(refused.is_err(), "{refused:?}");
    drop(busy);
    eventually(async || other.request(Method::GET, "/ok").send().await.is_ok()).await;
    drop(other);
    // The connection of the other client goes a moment after its owner, and may meanwhile cost another one its own.
    let plain = server.client();
    eventually(async || {
        plain
            .request(Method::GET, "/ok")
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    server.configuration_changes("max_connections = 1", "max_connections = 100");
    server.is_stopped_and_started_again().await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_is_refused() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let address = server.client().base().replacen("http://", "", 1);
    let long = format!("x-long: {}\r\n", "x".repeat(64 * 1024));
    let many: String = (0..200).map(|number| format!("x-{number}: x\r\n")).collect();
    for headers in [long, many] {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        let head = format!("GET /ok HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.expect("the server listens");
        let answer = timeout(SOON, rest(&mut stream))
            .await
            .expect("the connection is closed");
        assert!(answer.starts_with("HTTP/1.1 431"), "{} bytes: {answer}", head.len());
    }
    assert_eq!(server.client().get("/ok").await.status, 200);
    server.finish().await;
}

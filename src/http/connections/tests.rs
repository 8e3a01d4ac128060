//! Tests over real sockets, with a paused clock where time passes.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::domain::time::Timestamp;

/// The kinds of frames of HTTP/2 (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// The window of a stream of HTTP/2 at its beginning, in bytes.
const WINDOW: usize = 65_535;

/// A running server.
struct Served {
    address: SocketAddr,
    metrics: Metrics,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

async fn served(router: Router) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let shutdown = CancellationToken::new();
    let metrics = Metrics::new(Timestamp(0), []);
    let serving = tokio::spawn(serve(listener, router, usize::MAX, metrics.clone(), shutdown.clone()));
    Served {
        address,
        metrics,
        shutdown,
        serving,
    }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    /// Returns whether this many clients were disconnected since they took nothing.
    fn has_stalled(&self, clients: usize) -> bool {
        let line = format!("adjutant_stalled_clients_total {clients}");
        self.metrics.text(None).lines().any(|found| found == line)
    }
}

async fn send(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).await.expect("the server listens");
}

/// Reads until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![];
    stream.read_to_end(&mut bytes).await.expect("closed in good order");
    bytes
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed() {
    let server = served(hello()).await;
    let started = Instant::now();
    assert_eq!(rest(&mut server.connect().await).await, b"");
    assert!(started.elapsed() >= IDLE_TIMEOUT, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_an_unfinished_request_is_closed() {
    let server = served(hello()).await;
    let mut stream = server.connect().await;
    send(&mut stream, b"GET / HTTP/1.1\r\nhost: x\r\n").await;
    let answer = rest(&mut stream).await;
    assert!(!String::from_utf8_lossy(&answer).contains("hello"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_head_comes_byte_by_byte_is_closed() {
    let server = served(hello()).await;
    let started = Instant::now();
    let (mut receiving, mut sending) = server.connect().await.into_split();
    let slow_client = tokio::spawn(async move {
        let head = [b"GET / HTTP/1.1\r\nx: ".as_slice(), &[b'x'; 1000]].concat();
        for byte in head {
            if sending.write_all(&[byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(5)).await;
        }
    });
    let mut answer = vec![];
    // The server may also reset the connection, since it has bytes that it has not read.
    let _ = receiving.read_to_end(&mut answer).await;
    slow_client.abort();
    assert!(started.elapsed() < IDLE_TIMEOUT * 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_an_unfinished_preface_of_http_2_is_closed() {
    let server = served(hello()).await;
    let mut stream = server.connect().await;
    send(&mut stream, b"PRI * HTTP/2.0\r\n").await;
    assert_eq!(rest(&mut stream).await, b"");
}

#[tokio::test]
async fn several_requests_share_a_connection() {
    let server = served(hello()).await;
    let mut stream = server.connect().await;
    send(
        &mut stream,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    .await;
    let answers = String::from_utf8(rest(&mut stream).await).expect("text");
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
}

#[tokio::test]
async fn a_request_that_arrives_in_pieces_is_answered() {
    let server = served(Router::new().route("/", axum::routing::post(|| async { "hello" }))).await;
    let mut stream = server.connect().await;
    stream.set_nodelay(true).expect("a socket");
    for piece in [
        &b"P"[..],
        b"O",
        b"ST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ] {
        send(&mut stream, piece).await;
        tokio::task::yield_now().await;
    }
    let answer = String::from_utf8(rest(&mut stream).await).expect("text");
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn http_2_is_detected_by_its_preface() {
    let server = served(hello()).await;
    let mut stream = server.connect().await;
    send(&mut stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!(head[3], 4, "the server's settings come first (RFC 9113, 3.4): {head:?}");
}

#[tokio::test]
async fn a_shutdown_finishes_running_requests_and_accepts_no_more() {
    let started = Arc::new(Notify::new());
    let go_on = Arc::new(Notify::new());
    let notify = Arc::clone(&started);
    let waits = Arc::clone(&go_on);
    let slow = move || {
        let notify = Arc::clone(&notify);
        let waits = Arc::clone(&waits);
        async move {
            notify.notify_one();
            waits.notified().await;
            "done"
        }
    };
    let server = served(Router::new().route("/", get(slow))).await;
    let mut idle = server.connect().await;
    let mut busy = server.connect().await;
    send(&mut busy, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    started.notified().await;
    server.shutdown.cancel();
    assert_eq!(
        rest(&mut idle).await,
        b"",
        "who has asked for nothing is not waited for"
    );
    go_on.notify_one();
    let answer = String::from_utf8(rest(&mut busy).await).expect("text");
    assert!(answer.ends_with("done"), "{answer}");
    server.serving.await.expect("the server ends");
    assert!(TcpStream::connect(server.address).await.is_err());
}

/// A route that streams this body.
fn streaming<B: Into<Body>>(body: impl Fn() -> B + Clone + Send + Sync + 'static) -> axum::routing::MethodRouter {
    get(move || async move { Response::new(body().into()) })
}

/// A body of these pieces. Like a stream it is pending once before it fails, so that earlier pieces are sent.
fn in_pieces(pieces: &[Result<&'static str, io::ErrorKind>]) -> Body {
    let pieces: Vec<io::Result<Bytes>> = pieces
        .iter()
        .map(|piece| {
            piece
                .map(|text| Bytes::from_static(text.as_bytes()))
                .map_err(io::Error::from)
        })
        .collect();
    Body::from_stream(stream::iter(pieces).then(|piece| async move {
        if piece.is_err() {
            tokio::task::yield_now().await;
        }
        piece
    }))
}

async fn answer_to(server: &Served, requests: &[u8]) -> String {
    let mut stream = server.connect().await;
    send(&mut stream, requests).await;
    String::from_utf8(rest(&mut stream).await).expect("text")
}

#[tokio::test]
async fn a_stream_is_chunked_and_keeps_the_connection_open() {
    let router = hello().route(
        "/stream",
        streaming(|| in_pieces(&[Ok("one"), Ok(""), Ok("twenty-one letters, now")])),
    );
    let server = served(router).await;
    let requests = b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answers = answer_to(&server, requests).await;
    let (head, rest) = answers.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\ntransfer-encoding: chunked"), "{head}");
    let (body, next) = rest.split_once("0\r\n\r\n").expect("the last chunk");
    assert_eq!(body, "3\r\none\r\n17\r\ntwenty-one letters, now\r\n");
    assert!(
        next.starts_with("HTTP/1.1 200 OK\r\n") && next.ends_with("hello"),
        "{next}"
    );
}

#[tokio::test]
async fn an_aborted_stream_has_no_last_chunk() {
    let body = || in_pieces(&[Ok("one"), Err(io::ErrorKind::Other)]);
    let server = served(Router::new().route("/", streaming(body))).await;
    let answer = answer_to(&server, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.ends_with("\r\n\r\n3\r\none\r\n"), "{answer}");
}

#[tokio::test]
async fn an_http_1_0_client_gets_a_stream_without_chunks() {
    let server = served(Router::new().route("/", streaming(|| in_pieces(&[Ok("one"), Ok("two")])))).await;
    let answer = answer_to(&server, b"GET / HTTP/1.0\r\nhost: x\r\n\r\n").await;
    assert!(answer.ends_with("\r\n\r\nonetwo"), "{answer}");
    let answer = answer_to(&server, b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

/// Notifies when it is dropped.
struct Told(Arc<Notify>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A route that streams as much as the client takes, and a notification of the end of the stream.
fn endless() -> (axum::routing::MethodRouter, Arc<Notify>) {
    static PIECE: [u8; 16 * 1024] = [b'x'; 16 * 1024];
    let gone = Arc::new(Notify::new());
    let notify = Arc::clone(&gone);
    let body = move || {
        let told = Told(Arc::clone(&notify));
        Body::from_stream(stream::repeat_with(move || {
            let _told = &told;
            Ok::<_, io::Error>(Bytes::from_static(&PIECE))
        }))
    };
    (streaming(body), gone)
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_client_takes_nothing_is_ended() {
    let (route, gone) = endless();
    let server = served(Router::new().route("/", route)).await;
    let mut stream = server.connect().await;
    let started = Instant::now();
    send(&mut stream, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    gone.notified().await;
    assert!(started.elapsed() >= IDLE_TIMEOUT, "{:?}", started.elapsed());
    assert!(started.elapsed() < IDLE_TIMEOUT * 2, "{:?}", started.elapsed());
    assert!(server.has_stalled(1));
}

/// A frame of HTTP/2 (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("a short frame");
    [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], payload].concat()
}

/// The frame of a request for a path, with its fields in the shortest form (RFC 7541): a GET.
fn get_frame(stream: u8, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("a short path");
    let fields = [&[0x82, 0x86, 0x01, 1, b'x', 0x04, length][..], path.as_bytes()].concat();
    frame(HEADERS, 0x05, stream, &fields)
}

/// Connects over HTTP/2, and asks for a path on the first stream. All streams together have a window of more than 2 MiB.
async fn asks_over_http_2(server: &Served, path: &str) -> TcpStream {
    let mut connection = server.connect().await;
    send(&mut connection, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    send(&mut connection, &frame(SETTINGS, 0, 0, &[])).await;
    send(&mut connection, &frame(WINDOW_UPDATE, 0, 0, &[0, 0x20, 0, 0])).await;
    send(&mut connection, &get_frame(1, path)).await;
    connection
}

/// Reads a frame of HTTP/2. Returns its kind, the number of its stream and its payload.
async fn next_frame(connection: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    connection.read_exact(&mut head).await.expect("a frame");
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).expect("a length")];
    connection.read_exact(&mut payload).await.expect("its payload");
    (head[3], head[8], payload)
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_http_2_whose_client_takes_only_others_is_ended() {
    let (route, gone) = endless();
    let server = served(hello().route("/endless", route)).await;
    let started = Instant::now();
    let mut connection = asks_over_http_2(&server, "/endless").await;
    let mut taken = 0;
    let reason = loop {
        match next_frame(&mut connection).await {
            (DATA, 1, payload) => taken += payload.len(),
            (RST_STREAM, 1, payload) => break payload,
            _ => {}
        }
    };
    assert_eq!(reason, [0, 0, 0, 8], "the stream is cancelled");
    assert_eq!(taken, WINDOW);
    gone.notified().await;
    assert!(started.elapsed() >= IDLE_TIMEOUT, "{:?}", started.elapsed());
    assert!(started.elapsed() < IDLE_TIMEOUT * 2, "{:?}", started.elapsed());
    assert!(server.has_stalled(1));
    send(&mut connection, &get_frame(3, "/")).await;
    let said = loop {
        if let (DATA, 3, payload) = next_frame(&mut connection).await {
            break payload;
        }
    };
    assert_eq!(said, b"hello");
}

#[tokio::test(start_paused = true)]
async fn a_large_piece_of_a_stream_of_http_2_may_be_taken_slowly() {
    const LARGE: usize = 512 * 1024;
    let pieces = || stream::iter([b'x', b'y'].map(|byte| Ok::<_, io::Error>(Bytes::from(vec![byte; LARGE]))));
    let route = streaming(move || Body::from_stream(pieces()));
    let server = served(Router::new().route("/", route)).await;
    let started = Instant::now();
    let mut connection = asks_over_http_2(&server, "/").await;
    let mut taken = 0;
    let mut granted = WINDOW;
    while taken < 2 * LARGE {
        match next_frame(&mut connection).await {
            (DATA, 1, payload) => taken += payload.len(),
            (PING, 0, payload) => send(&mut connection, &frame(PING, 1, 0, &payload)).await,
            _ => {}
        }
        if taken == granted {
            sleep(IDLE_TIMEOUT / 4).await;
            granted += 0x1_0000;
            send(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0])).await;
        }
    }
    assert_eq!(taken, 2 * LARGE);
    assert!(started.elapsed() > IDLE_TIMEOUT * 2, "{:?}", started.elapsed());
    assert!(server.has_stalled(0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_http_2_whose_client_takes_little_at_a_time_is_kept() {
    const LITTLE: usize = 16;
    let (route, _gone) = endless();
    let server = served(Router::new().route("/", route)).await;
    let started = Instant::now();
    let mut connection = asks_over_http_2(&server, "/").await;
    let mut taken = 0;
    let mut granted = WINDOW;
    while started.elapsed() < IDLE_TIMEOUT * 5 {
        match next_frame(&mut connection).await {
            (DATA, 1, payload) => taken += payload.len(),
            (RST_STREAM, 1, reason) => panic!("the stream is reset: {reason:?}"),
            (PING, 0, payload) => send(&mut connection, &frame(PING, 1, 0, &payload)).await,
            _ => {}
        }
        if taken == granted {
            sleep(IDLE_TIMEOUT / 4).await;
            granted += LITTLE;
            send(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 16])).await;
        }
    }
    assert!(taken > WINDOW + 16 * LITTLE, "{taken}");
    assert!(server.has_stalled(0));
}

#[tokio::test]
async fn a_large_answer_over_http_2_has_large_frames() {
    let (route, _gone) = endless();
    let server = served(Router::new().route("/", route)).await;
    let mut connection = asks_over_http_2(&server, "/").await;
    let mut frames = vec![];
    while frames.iter().sum::<usize>() < WINDOW {
        if let (DATA, 1, payload) = next_frame(&mut connection).await {
            frames.push(payload.len());
        }
    }
    assert!(frames.len() < 8, "{frames:?}");
}

#[tokio::test]
async fn a_disconnect_from_an_idle_stream_is_noticed_at_once() {
    let gone = Arc::new(Notify::new());
    let notify = Arc::clone(&gone);
    let body = move || {
        let notify = Told(Arc::clone(&notify));
        Body::from_stream(stream::once(async move {
            let _told = notify;
            std::future::pending::<io::Result<Bytes>>().await
        }))
    };
    let server = served(Router::new().route("/", streaming(body))).await;
    let mut stream = server.connect().await;
    send(&mut stream, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut first = [0; 8];
    stream
        .read_exact(&mut first)
        .await
        .expect("the head comes before there is anything to say");
    drop(stream);
    gone.notified().await;
}

#[tokio::test]
async fn a_stream_waits_for_the_response_before_it() {
    const LARGE: usize = 16 * 1024 * 1024;
    let large = get(|| async { "x".repeat(LARGE) });
    let server = served(Router::new().route("/large", large).route("/", streaming(|| "stream"))).await;
    let requests = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answers = answer_to(&server, requests).await;
    let (_, bodies) = answers.split_once("\r\n\r\n").expect("a head");
    let until_next = bodies.find("HTTP/1.1").unwrap_or(LARGE);
    assert_eq!(until_next, LARGE);
}

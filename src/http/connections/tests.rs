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

/// A running server.
struct Served {
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

async fn served(router: Router) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, router, usize::MAX, shutdown.clone()));
    Served {
        address,
        shutdown,
        serving,
    }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
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

#[tokio::test]
async fn a_disconnect_from_an_idle_stream_is_noticed_at_once() {
    struct Told(Arc<Notify>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
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

//! A TCP proxy before a server, which can block connections and whose address stays when the server restarts.

use std::sync::Arc;

use adjutant::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::client::Client;

/// The treatment of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyState {
    /// Connections are forwarded to the server.
    Open,
    /// Connections are closed.
    Shut,
    /// Connections are accepted, and nothing is ever answered.
    Mute,
    /// Connections are forwarded, but the response to the first request that starts a run is lost.
    Forgetful,
}

/// A proxy before a server.
pub(crate) struct Proxy {
    /// The address of the proxy.
    pub(crate) base: String,
    way: Arc<watch::Sender<ProxyState>>,
    around: Shutdown,
}

impl Proxy {
    /// Starts an open proxy before the server of this client.
    pub(crate) async fn before(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let way = Arc::new(watch::Sender::new(ProxyState::Open));
        let around = Shutdown::default();
        let ways = Arc::clone(&way);
        let tasks = around.clone();
        around.spawn("proxy", async move {
            while let Ok((client_stream, _)) = listener.accept().await {
                tasks.spawn("connection", forward(client_stream, client.clone(), Arc::clone(&ways)));
            }
        });
        Self { base, way, around }
    }

    /// Sets the treatment of new connections, and closes the existing ones.
    pub(crate) fn is(&self, way: ProxyState) {
        self.way.send_replace(way);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn forward(mut client_stream: TcpStream, client: Client, ways: Arc<watch::Sender<ProxyState>>) {
    let mut way = ways.subscribe();
    let now = *way.borrow_and_update();
    let forwarded = async {
        match now {
            ProxyState::Shut => {}
            ProxyState::Mute => std::future::pending().await,
            // Another server of the tests may have its port by now, and would answer.
            ProxyState::Open | ProxyState::Forgetful if client.is_down() => {}
            ProxyState::Open | ProxyState::Forgetful => {
                let address = client.base().trim_start_matches("http://").to_owned();
                let Ok(mut server) = TcpStream::connect(address).await else {
                    return false;
                };
                if now == ProxyState::Forgetful {
                    return lose_response(&mut client_stream, &mut server).await;
                }
                let _ = copy_bidirectional(&mut client_stream, &mut server).await;
            }
        }
        false
    };
    let has_lost_response = tokio::select! {
        is_lost = forwarded => is_lost,
        _ = way.changed() => false,
    };
    if has_lost_response {
        ways.send_replace(ProxyState::Open);
    }
}

/// Forwards requests, one at a time, up to one that starts a run, whose response is lost. Returns whether there was
/// one.
async fn lose_response(client_stream: &mut TcpStream, server: &mut TcpStream) -> bool {
    let mut request_bytes = vec![0; 65_536];
    let mut response_bytes = vec![0; 65_536];
    loop {
        tokio::select! {
            read = client_stream.read(&mut request_bytes) => {
                let Ok(length @ 1..) = read else { return false };
                let request = String::from_utf8_lossy(&request_bytes[..length]).into_owned();
                if server.write_all(request.as_bytes()).await.is_err() {
                    return false;
                }
                if request.starts_with("POST") && request.lines().next().is_some_and(|line| line.contains("/runs ")) {
                    let _ = server.read(&mut response_bytes).await;
                    return true;
                }
            }
            read = server.read(&mut response_bytes) => {
                let Ok(length @ 1..) = read else { return false };
                if client_stream.write_all(&response_bytes[..length]).await.is_err() {
                    return false;
                }
            }
        }
    }
}

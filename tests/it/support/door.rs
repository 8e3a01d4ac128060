//! The way to a server, which can be shut, and whose address stays when the server moves.

use std::sync::Arc;

use adjutant::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::client::Client;

/// What becomes of those who come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// They are led to the server.
    Open,
    /// They are sent away.
    Shut,
    /// They are let in and never hear anything.
    Mute,
    /// They are led to the server, but what it answers to the first who wants a run begun is lost.
    Forgetful,
}

/// A door before a server.
pub(crate) struct Door {
    /// Where it is.
    pub(crate) base: String,
    way: Arc<watch::Sender<Way>>,
    around: Shutdown,
}

impl Door {
    /// An open door before the server that this client talks to.
    pub(crate) async fn before(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let way = Arc::new(watch::Sender::new(Way::Open));
        let around = Shutdown::default();
        let ways = Arc::clone(&way);
        let tasks = around.clone();
        around.spawn("door", async move {
            while let Ok((visitor, _)) = listener.accept().await {
                tasks.spawn("visitor", lead(visitor, client.clone(), Arc::clone(&ways)));
            }
        });
        Self { base, way, around }
    }

    /// From now on this becomes of those who come, and those inside have to go.
    pub(crate) fn is(&self, way: Way) {
        self.way.send_replace(way);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn lead(mut visitor: TcpStream, client: Client, ways: Arc<watch::Sender<Way>>) {
    let mut way = ways.subscribe();
    let now = *way.borrow_and_update();
    let led = async {
        match now {
            Way::Shut => {}
            Way::Mute => std::future::pending().await,
            Way::Open | Way::Forgetful => {
                let place = client.base().trim_start_matches("http://").to_owned();
                let Ok(mut server) = TcpStream::connect(place).await else {
                    return false;
                };
                if now == Way::Forgetful {
                    return forgets(&mut visitor, &mut server).await;
                }
                let _ = copy_bidirectional(&mut visitor, &mut server).await;
            }
        }
        false
    };
    let has_forgotten = tokio::select! {
        forgot = led => forgot,
        _ = way.changed() => false,
    };
    if has_forgotten {
        ways.send_replace(Way::Open);
    }
}

/// Leads a visitor, one request at a time, until one wants a run begun; that is passed on, and the answer is lost. True then.
async fn forgets(visitor: &mut TcpStream, server: &mut TcpStream) -> bool {
    let mut asked = vec![0; 65_536];
    let mut answered = vec![0; 65_536];
    loop {
        tokio::select! {
            read = visitor.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return false };
                let request = String::from_utf8_lossy(&asked[..length]).into_owned();
                if server.write_all(request.as_bytes()).await.is_err() {
                    return false;
                }
                if request.starts_with("POST") && request.lines().next().is_some_and(|line| line.contains("/runs ")) {
                    let _ = server.read(&mut answered).await;
                    return true;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return false };
                if visitor.write_all(&answered[..length]).await.is_err() {
                    return false;
                }
            }
        }
    }
}

//! The way to a server, which can be shut, and whose address stays when the server moves.

use std::sync::Arc;

use adjutant::shutdown::Shutdown;
use tokio::io::copy_bidirectional;
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
        let (way, around) = (Arc::new(watch::Sender::new(Way::Open)), Shutdown::default());
        let (ways, tasks) = (Arc::clone(&way), around.clone());
        around.spawn("door", async move {
            while let Ok((visitor, _)) = listener.accept().await {
                tasks.spawn("visitor", lead(visitor, client.clone(), ways.subscribe()));
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

async fn lead(mut visitor: TcpStream, client: Client, mut way: watch::Receiver<Way>) {
    let now = *way.borrow_and_update();
    let led = async {
        match now {
            Way::Shut => {}
            Way::Mute => std::future::pending().await,
            Way::Open => {
                let place = client.base().trim_start_matches("http://").to_owned();
                if let Ok(mut server) = TcpStream::connect(place).await {
                    let _ = copy_bidirectional(&mut visitor, &mut server).await;
                }
            }
        }
    };
    tokio::select! {
        () = led => {}
        _ = way.changed() => {}
    }
}

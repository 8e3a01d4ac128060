//! A way to Postgres on which nothing goes on for as long as a scene wants.

use std::str::FromStr;
use std::sync::Arc;

use adjutant::shutdown::Shutdown;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// A proxy before a Postgres.
pub(crate) struct WireTap {
    /// The address of the database through the proxy.
    pub(crate) url: String,
    held: Arc<watch::Sender<bool>>,
    around: Shutdown,
}

impl WireTap {
    /// A proxy before the database at `url`.
    pub(crate) async fn before(url: &str) -> Self {
        let options = PgConnectOptions::from_str(url).expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().unwrap();
        let database = options.get_database().expect("a database").to_owned();
        let through = format!("postgres://{}@{address}/{database}", options.get_username());
        let (held, around) = (Arc::new(watch::Sender::new(false)), Shutdown::default());
        let (holds, tasks) = (Arc::clone(&held), around.clone());
        around.spawn("wire tap", async move {
            while let Ok((visitor, _)) = listener.accept().await {
                tasks.spawn("wire", lead(visitor, options.clone(), Arc::clone(&holds)));
            }
        });
        Self { url: through, held, around }
    }

    /// Whether nothing goes on: connections stay open, new ones are accepted, and not a byte passes.
    pub(crate) fn hold(&self, holds: bool) {
        self.held.send_replace(holds);
    }
}

impl Drop for WireTap {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn lead(visitor: TcpStream, options: PgConnectOptions, held: Arc<watch::Sender<bool>>) {
    let (from, to) = visitor.into_split();
    match options.get_socket() {
        Some(folder) => {
            let file = folder.join(format!(".s.PGSQL.{}", options.get_port()));
            let Ok(server) = UnixStream::connect(file).await else { return };
            let (back, forth) = server.into_split();
            tokio::join!(pass(from, forth, &held), pass(back, to, &held));
        }
        None => {
            let Ok(server) = TcpStream::connect((options.get_host(), options.get_port())).await else { return };
            let (back, forth) = server.into_split();
            tokio::join!(pass(from, forth, &held), pass(back, to, &held));
        }
    }
}

/// Passes bytes on while nothing is held.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, held: &watch::Sender<bool>) {
    let mut held = held.subscribe();
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if held.wait_for(|held| !held).await.is_err() || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

//! A proxy before a Postgres on a Unix socket, which can lose commits, can stop forwarding, and can lead to another
//! Postgres.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use adjutant::shutdown::Shutdown;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::actors::{Human, Run};
use super::{Engine, TestServer, eventually, play};

/// The name of a Postgres socket.
const SOCKET: &str = ".s.PGSQL.5432";

/// The treatment of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// Commits and their answers are forwarded.
    Arrive,
    /// The connection breaks before the commit is forwarded.
    GetLost,
    /// The commit is forwarded, and the connection breaks before its answer is.
    AreNotAcknowledged,
    /// Does what [`Commits::GetLost`] does, for marked transactions only.
    OfMarkedGetLost,
    /// Does what [`Commits::AreNotAcknowledged`] does, for marked transactions only.
    OfMarkedAreNotAcknowledged,
}

impl Commits {
    /// Returns the treatment of the commit of a transaction.
    fn of_transaction(self, is_marked: bool) -> Self {
        match self {
            Self::OfMarkedGetLost if is_marked => Self::GetLost,
            Self::OfMarkedAreNotAcknowledged if is_marked => Self::AreNotAcknowledged,
            Self::OfMarkedGetLost | Self::OfMarkedAreNotAcknowledged => Self::Arrive,
            Self::Arrive | Self::GetLost | Self::AreNotAcknowledged => self,
        }
    }
}

/// A proxy before a Postgres.
pub(crate) struct PostgresProxy {
    /// The URL of the database through the proxy.
    pub(crate) url: String,
    state: Arc<ProxyState>,
    around: Shutdown,
    _folder: TempDir,
}

struct ProxyState {
    server: watch::Sender<PathBuf>,
    commits: watch::Sender<Commits>,
    /// True if forwarding is stopped.
    silent: watch::Sender<bool>,
    /// The bytes by which the counted transactions are recognised.
    mark: &'static [u8],
    broken: AtomicUsize,
}

impl PostgresProxy {
    /// Starts a proxy before the database at `url`; `None` if that has no Unix socket. Lost commits of transactions
    /// that contain `mark` are counted.
    pub(crate) fn before(url: &str, mark: &'static str) -> Option<Self> {
        let (before, directory) = url.split_once("?host=")?;
        let folder = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(folder.path().join(SOCKET)).expect("a socket");
        let state = Arc::new(ProxyState {
            server: watch::Sender::new(Path::new(directory).join(SOCKET)),
            commits: watch::Sender::new(Commits::Arrive),
            silent: watch::Sender::new(false),
            mark: mark.as_bytes(),
            broken: AtomicUsize::new(0),
        });
        let around = Shutdown::default();
        let url = format!("{before}?host={}", folder.path().display());
        let tasks = around.clone();
        let shared = Arc::clone(&state);
        around.spawn("proxy", async move {
            while let Ok((client_stream, _)) = listener.accept().await {
                tasks.spawn("connection", serve_connection(client_stream, Arc::clone(&shared)));
            }
        });
        Some(Self {
            url,
            state,
            around,
            _folder: folder,
        })
    }

    /// Sets the treatment of commits.
    pub(crate) fn commits(&self, commits: Commits) {
        self.state.commits.send_replace(commits);
    }

    /// Forwards new connections to the Postgres of this URL, as an address does that moves.
    pub(crate) fn leads_to(&self, url: &str) {
        let (_, directory) = url.split_once("?host=").expect("a Unix socket");
        self.state.server.send_replace(Path::new(directory).join(SOCKET));
    }

    /// Stops forwarding in both directions; connections stay open, and new ones are accepted.
    pub(crate) fn stops_forwarding(&self) {
        self.state.silent.send_replace(true);
    }

    /// Forwards new connections again. The earlier ones stay open without an answer.
    pub(crate) fn forwards_again(&self) {
        self.state.silent.send_replace(false);
    }

    /// Returns the number of lost commits of marked transactions.
    pub(crate) fn broken(&self) -> usize {
        self.state.broken.load(Ordering::SeqCst)
    }
}

/// Runs a test on Postgres with a server behind a proxy, if that has a Unix socket. Lost commits of transactions that contain
/// `mark` are counted. Afterwards the server is started again without the proxy, since it is asked about its work then.
pub(crate) async fn play_behind_proxy<F: Future<Output = ()>>(
    mark: &'static str,
    test: impl FnOnce(TestServer, Arc<PostgresProxy>) -> F,
) {
    play(Engine::Postgres, async |server: TestServer| {
        let straight = server.database_url();
        let Some(door) = PostgresProxy::before(&straight, mark) else {
            return;
        };
        let door = Arc::new(door);
        server.is_reconfigured(&straight, &door.url).await;
        Box::pin(test(server.clone(), Arc::clone(&door))).await;
        server.is_reconfigured(&door.url, &straight).await;
    })
    .await;
}

impl PostgresProxy {
    /// Has a user ask while commits are treated like this, until one was broken. Returns the run, which goes on then and is
    /// finished.
    pub(crate) async fn breaks_a_commit_of(&self, commits: Commits, human: &Human, text: impl ToString) -> Run {
        self.commits(commits);
        let run = human.asks(text).await;
        eventually(async || self.broken() > 0).await;
        self.commits(Commits::Arrive);
        run.finishes().await;
        run
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn serve_connection(client_stream: UnixStream, state: Arc<ProxyState>) {
    let mut silent = state.silent.subscribe();
    let silence = async { silent.wait_for(|silent| *silent).await.map(drop) };
    let forwarding = forward(client_stream, &state);
    tokio::pin!(forwarding);
    tokio::select! {
        biased;
        _ = silence => {}
        () = &mut forwarding => return,
    }
    // Keeps both connections open.
    std::future::pending::<()>().await;
}

async fn forward(client_stream: UnixStream, state: &ProxyState) {
    let path = state.server.borrow().clone();
    let Ok(server) = UnixStream::connect(path).await else {
        return;
    };
    let (mut from_client, mut to_client) = client_stream.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut request_bytes = vec![0; 65_536];
    let mut response_bytes = vec![0; 65_536];
    let mut is_marked = false;
    loop {
        tokio::select! {
            read = from_client.read(&mut request_bytes) => {
                let Ok(length @ 1..) = read else { return };
                let bytes = &request_bytes[..length];
                is_marked |= bytes.windows(state.mark.len()).any(|words| words == state.mark);
                // The end of a message, which may have other statements before it.
                let is_commit = bytes.windows(7).any(|word| word.eq_ignore_ascii_case(b"commit\0"));
                let commits = match is_commit {
                    true => state.commits.borrow().of_transaction(is_marked),
                    false => Commits::Arrive,
                };
                if commits != Commits::GetLost && to_server.write_all(bytes).await.is_err() {
                    return;
                }
                if commits == Commits::AreNotAcknowledged {
                    // The answer shows that Postgres has committed.
                    let _ = from_server.read(&mut response_bytes).await;
                }
                if commits != Commits::Arrive {
                    state.broken.fetch_add(usize::from(is_marked), Ordering::SeqCst);
                    return;
                }
                is_marked &= !is_commit;
            }
            read = from_server.read(&mut response_bytes) => {
                let Ok(length @ 1..) = read else { return };
                if to_client.write_all(&response_bytes[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

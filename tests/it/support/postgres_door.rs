//! The way to a Postgres that listens on a Unix socket, on which commits can get lost, and which can fall silent.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use adjutant::shutdown::Shutdown;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// How a socket of Postgres is called.
const SOCKET: &str = ".s.PGSQL.5432";

/// What becomes of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// They arrive, and so do their answers.
    Arrive,
    /// The connection breaks before they arrive.
    GetLost,
    /// They arrive, and then the connection breaks: nobody hears that they did.
    AreNotHeardOf,
}

/// A door before a Postgres.
pub(crate) struct PostgresDoor {
    /// The address of the database, through the door.
    pub(crate) url: String,
    desk: Arc<Desk>,
    around: Shutdown,
    _folder: TempDir,
}

struct Desk {
    server: PathBuf,
    commits: watch::Sender<Commits>,
    /// Whether nothing goes through.
    silent: watch::Sender<bool>,
    /// What stands in the transactions that are counted.
    mark: &'static [u8],
    broken: AtomicUsize,
}

impl PostgresDoor {
    /// A door before the database at `url`; none when that has no Unix socket. It counts lost commits of transactions that
    /// wrote this `mark`.
    pub(crate) fn before(url: &str, mark: &'static str) -> Option<Self> {
        let (before, directory) = url.split_once("?host=")?;
        let folder = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(folder.path().join(SOCKET)).expect("a socket");
        let desk = Arc::new(Desk {
            server: Path::new(directory).join(SOCKET),
            commits: watch::Sender::new(Commits::Arrive),
            silent: watch::Sender::new(false),
            mark: mark.as_bytes(),
            broken: AtomicUsize::new(0),
        });
        let around = Shutdown::default();
        let url = format!("{before}?host={}", folder.path().display());
        let tasks = around.clone();
        let of_all = Arc::clone(&desk);
        around.spawn("door", async move {
            while let Ok((visitor, _)) = listener.accept().await {
                tasks.spawn("visitor", lead(visitor, Arc::clone(&of_all)));
            }
        });
        Some(Self {
            url,
            desk,
            around,
            _folder: folder,
        })
    }

    /// From now on this becomes of commits.
    pub(crate) fn commits(&self, commits: Commits) {
        self.desk.commits.send_replace(commits);
    }

    /// From now on nothing goes through, in either direction, and nobody is sent away. Who comes is let in.
    pub(crate) fn falls_silent(&self) {
        self.desk.silent.send_replace(true);
    }

    /// Who comes from now on gets through. Those who were there in the silence never hear anything again.
    pub(crate) fn speaks_again(&self) {
        self.desk.silent.send_replace(false);
    }

    /// How many commits of marked transactions were lost.
    pub(crate) fn broken(&self) -> usize {
        self.desk.broken.load(Ordering::SeqCst)
    }
}

impl Drop for PostgresDoor {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn lead(visitor: UnixStream, desk: Arc<Desk>) {
    let mut silent = desk.silent.subscribe();
    let silence = async { silent.wait_for(|silent| *silent).await.map(drop) };
    let carrying = carry(visitor, &desk);
    tokio::pin!(carrying);
    tokio::select! {
        biased;
        _ = silence => {}
        () = &mut carrying => return,
    }
    // What it holds open stays so.
    std::future::pending::<()>().await;
}

async fn carry(visitor: UnixStream, desk: &Desk) {
    let Ok(server) = UnixStream::connect(&desk.server).await else {
        return;
    };
    let (mut from_visitor, mut to_visitor) = visitor.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut asked = vec![0; 65_536];
    let mut answered = vec![0; 65_536];
    let mut is_marked = false;
    loop {
        tokio::select! {
            read = from_visitor.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                let said = &asked[..length];
                is_marked |= said.windows(desk.mark.len()).any(|words| words == desk.mark);
                let is_commit = said.windows(6).any(|word| word == b"COMMIT");
                let commits = if is_commit { *desk.commits.borrow() } else { Commits::Arrive };
                if commits != Commits::GetLost && to_server.write_all(said).await.is_err() {
                    return;
                }
                if commits == Commits::AreNotHeardOf {
                    // Postgres has done it when it answers.
                    let _ = from_server.read(&mut answered).await;
                }
                if commits != Commits::Arrive {
                    desk.broken.fetch_add(usize::from(is_marked), Ordering::SeqCst);
                    return;
                }
                is_marked &= !is_commit;
            }
            read = from_server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if to_visitor.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

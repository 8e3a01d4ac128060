//! Those who send: many clients at once, one that looks whether the server still answers, and runs that meet hostile parties.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::documents::Chance;
use super::endpoints::Places;
use super::parties;
use super::requests::{Manner, Request, request};
use super::server::Server;

/// How many clients send at once.
const CLIENTS: usize = 16;
/// How long an answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the requests.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// How many were sent.
    pub(crate) count: usize,
    /// How many had an answer.
    pub(crate) answered: usize,
    /// How many answers there were of each status.
    pub(crate) statuses: BTreeMap<u16, usize>,
    /// The beginnings of the requests that were answered with a fault of the server.
    pub(crate) faults: Vec<String>,
}

/// Sends `count` requests.
pub(crate) async fn send(server: &Server, places: &Places, count: usize, chance: &mut Chance) -> Sent {
    let address = server.base.trim_start_matches("http://").to_owned();
    let sent = Arc::new(Mutex::new(Sent::default()));
    let mut clients = JoinSet::new();
    for _ in 0..count {
        if clients.len() >= CLIENTS {
            clients.join_next().await.unwrap().unwrap();
        }
        let request = request(chance, places, &address);
        let address = address.clone();
        let sent = Arc::clone(&sent);
        clients.spawn(async move {
            let status = exchange(&address, &request).await;
            let mut sent = sent.lock().await;
            sent.count += 1;
            let Some(status) = status else { return };
            sent.answered += 1;
            *sent.statuses.entry(status).or_default() += 1;
            if status == 500 && sent.faults.len() < 10 {
                let end = request.bytes.len().min(600);
                sent.faults
                    .push(String::from_utf8_lossy(&request.bytes[..end]).into_owned());
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    Arc::into_inner(sent).unwrap().into_inner()
}

/// Sends a request; the status of the answer, if one came and was to be read.
async fn exchange(address: &str, request: &Request) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    // The server may answer and leave before it has read everything.
    let _ = timeout(PATIENCE, stream.write_all(&request.bytes)).await;
    match request.manner {
        Manner::Ignores => return None,
        Manner::Stalls => {
            let mut byte = [0];
            let _ = timeout(Duration::from_millis(20), stream.read(&mut byte)).await;
            return None;
        }
        Manner::Reads => {}
    }
    let mut head = vec![0; 4096];
    let read = timeout(PATIENCE, stream.read(&mut head))
        .await
        .expect("the server answers")
        .ok()?;
    let line = String::from_utf8_lossy(&head[..read]).into_owned();
    let status = line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    // Streams stay open; some of what they say is enough.
    let mut rest = vec![0; 65_536];
    let _ = timeout(Duration::from_millis(100), stream.read(&mut rest)).await;
    Some(status)
}

/// One who asks `/ok` all the time.
pub(crate) struct Watch {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Vec<Duration>>,
}

/// Begins to ask.
pub(crate) fn watch(base: String) -> Watch {
    let (stop, mut stopped) = watch::channel(false);
    let task = tokio::spawn(async move {
        let http = adjutant::net::client_builder().no_proxy().build().unwrap();
        let mut times = vec![];
        while !*stopped.borrow() {
            let began = Instant::now();
            let response = http
                .get(format!("{base}/ok"))
                .send()
                .await
                .expect("the server is there");
            assert!(response.status().is_success(), "/ok answered {}", response.status());
            times.push(began.elapsed());
            let _ = timeout(Duration::from_millis(20), stopped.changed()).await;
        }
        times
    });
    Watch { stop, task }
}

impl Watch {
    /// Ends it; how long the answers took.
    pub(crate) async fn finish(self) -> Answers {
        self.stop.send_replace(true);
        let mut times = self.task.await.unwrap();
        times.sort();
        Answers(times)
    }
}

/// How long answers took, the shortest first.
pub(crate) struct Answers(Vec<Duration>);

impl Answers {
    /// Nearly all came in time, and none took long. A machine with two processors, on which the clients work too, may
    /// hold up one in a hundred.
    pub(crate) fn check(&self, prompt: Duration) {
        let count = self.0.len();
        assert!(count > 20, "/ok was asked only {count} times");
        let most = self.0[count * 99 / 100];
        let longest = self.0[count - 1];
        assert!(
            most <= prompt && longest <= prompt * 20,
            "of {count} answers of /ok 99 % took {most:?}, the longest {longest:?}"
        );
    }
}

/// Runs every agent whose model, tool, MCP server or delegate is hostile; each run comes to its end.
pub(crate) async fn run_hostile_parties(base: String) {
    let http = adjutant::net::client_builder().no_proxy().build().unwrap();
    let mut runs = JoinSet::new();
    for agent in parties::agents() {
        if runs.len() >= 4 {
            runs.join_next().await.unwrap().unwrap();
        }
        let http = http.clone();
        let url = format!("{base}/runs/wait");
        runs.spawn(async move {
            let input = json!({"messages": [{"role": "user", "content": agent.prompt}]});
            let body = json!({"assistant_id": agent.name, "input": input, "on_disconnect": "continue"});
            let run = run_to_its_end(&http, &url, &body);
            let status = timeout(Duration::from_secs(120), run).await;
            let status = status.unwrap_or_else(|_| panic!("the run of {} does not end", agent.name));
            assert!(status.is_success(), "the run of {}: {status}", agent.name);
        });
    }
    while let Some(done) = runs.join_next().await {
        done.unwrap();
    }
}

/// Starts a run and waits for its end; begins again while the server is busy with others, as it asks for.
async fn run_to_its_end(http: &reqwest::Client, url: &str, body: &Value) -> reqwest::StatusCode {
    loop {
        let answer = http.post(url).json(body).send().await.expect("the server answers");
        let status = answer.status();
        // The end of the body is the end of the run.
        answer.bytes().await.expect("a whole answer");
        if status != reqwest::StatusCode::SERVICE_UNAVAILABLE {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

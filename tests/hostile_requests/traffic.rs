//! The traffic of the test: many clients at once, one that polls `/ok`, and runs that use hostile parties.

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

/// The number of clients that send at once.
const CLIENTS: usize = 16;
/// The timeout of an answer's beginning.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The results of the requests.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The number of requests.
    pub(crate) count: usize,
    /// The number of answers.
    pub(crate) answered: usize,
    /// The number of answers by status.
    pub(crate) statuses: BTreeMap<u16, usize>,
    /// The beginnings of the requests that were answered with status 500.
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

/// Sends a request and returns the status of the answer, if there is one and the client reads it.
async fn exchange(address: &str, request: &Request) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    // The server may answer and close the connection before it has read everything.
    let _ = timeout(ANSWER_TIMEOUT, stream.write_all(&request.bytes)).await;
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
    let read = timeout(ANSWER_TIMEOUT, stream.read(&mut head))
        .await
        .expect("the server answers")
        .ok()?;
    let line = String::from_utf8_lossy(&head[..read]).into_owned();
    let status = line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    // Streams stay open, so only a part is read.
    let mut rest = vec![0; 65_536];
    let _ = timeout(Duration::from_millis(100), stream.read(&mut rest)).await;
    Some(status)
}

/// A client that polls `/ok`.
pub(crate) struct Watch {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Vec<Duration>>,
}

/// Starts to poll.
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
    /// Stops polling and returns the response times.
    pub(crate) async fn finish(self) -> Answers {
        self.stop.send_replace(true);
        let mut times = self.task.await.unwrap();
        times.sort();
        Answers(times)
    }
}

/// The response times, the shortest first.
pub(crate) struct Answers(Vec<Duration>);

impl Answers {
    /// Checks that 99 % of the answers came within `prompt` and that none took much longer. On a machine with two
    /// processors, which also runs the clients, one answer in a hundred may be late.
    pub(crate) fn check(&self, prompt: Duration) {
        let count = self.0.len();
        assert!(count > 20, "/ok was asked only {count} times");
        let most = self.0[count * 99 / 100];
        let longest = self.0[count - 1];
        assert!(
            most <= prompt,
            "of {count} answers of /ok 99 % took {most:?}, the longest {longest:?}"
        );
        assert!(
            longest <= prompt * 20,
            "of {count} answers of /ok 99 % took {most:?}, the longest {longest:?}"
        );
    }
}

/// Runs every agent whose model, tool, MCP server or remote agent is hostile, and checks that each run ends.
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

/// Starts a run and waits for its end; retries while the server answers that it is busy.
async fn run_to_its_end(http: &reqwest::Client, url: &str, body: &Value) -> reqwest::StatusCode {
    loop {
        let answer = http.post(url).json(body).send().await.expect("the server answers");
        let status = answer.status();
        // The body ends when the run ends.
        answer.bytes().await.expect("a whole answer");
        if status != reqwest::StatusCode::SERVICE_UNAVAILABLE {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

//! Hostile outside parties: one server that misbehaves as models, tools, MCP servers and remote agents.

use std::fmt::Write;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::schemas::doubling;

/// The maximum size of an endless answer, in bytes.
const ENDLESS: usize = 64 * 1024 * 1024;

/// The kinds of misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Endless pieces of an answer.
    Endless,
    /// One endless line.
    EndlessLine,
    /// Many zeros.
    Zeros,
    /// JSON that is nested 5,000 levels deep.
    Deep,
    /// JSON that is nested 120 levels deep, which parsers accept.
    RatherDeep,
    /// Text with U+0000.
    Nul,
    /// An error with a very long text.
    LongError,
    /// A connection without an answer.
    Silent,
    /// One byte at a time, with pauses.
    Slow,
    /// An answer that is shorter than its content length.
    Half,
    /// Bytes that are not HTTP.
    Garbage,
    /// Redirects to itself.
    Redirects,
}

const MANNERS: [(Manner, &str); 12] = [
    (Manner::Endless, "endless"),
    (Manner::EndlessLine, "endless_line"),
    (Manner::Zeros, "zeros"),
    (Manner::Deep, "deep"),
    (Manner::RatherDeep, "rather_deep"),
    (Manner::Nul, "nul"),
    (Manner::LongError, "long_error"),
    (Manner::Silent, "silent"),
    (Manner::Slow, "slow"),
    (Manner::Half, "half"),
    (Manner::Garbage, "garbage"),
    (Manner::Redirects, "redirects"),
];

/// The kinds of providers that are imitated.
const PROVIDERS: [&str; 3] = ["openai", "anthropic", "google_genai"];

/// An agent that uses a hostile party, and the message for its run.
pub(crate) struct HostileAgent {
    /// The `graph_id` of the agent.
    pub(crate) name: String,
    /// The message that starts the run.
    pub(crate) prompt: String,
}

/// Returns all agents that use hostile parties.
pub(crate) fn agents() -> Vec<HostileAgent> {
    let call = |name: &str, args: Value| {
        json!({"script": [{"tool_calls": [{"name": name, "args": args}]}, {"text": "done"}]}).to_string()
    };
    let mut all = vec![];
    for (_, word) in MANNERS {
        for provider in PROVIDERS {
            all.push(HostileAgent {
                name: format!("{provider}_{word}"),
                prompt: "hello".to_owned(),
            });
        }
        all.push(HostileAgent {
            name: format!("tool_{word}"),
            prompt: call(&format!("tool_{word}"), json!({"a": 1})),
        });
        all.push(HostileAgent {
            name: format!("mcp_{word}"),
            prompt: call("anything", json!({})),
        });
        let order = json!({"description": "Do it.", "subagent_type": "elsewhere"});
        all.push(HostileAgent {
            name: format!("peer_{word}"),
            prompt: call("task", order),
        });
    }
    all.push(HostileAgent {
        name: "mcp_schema".to_owned(),
        prompt: call("find", json!({"a": 1})),
    });
    all
}

/// The address of the hostile parties.
pub(crate) struct Parties {
    base: String,
}

impl Parties {
    /// Returns the configuration of a server whose agents use all parties. The timeouts are short, so that parties that
    /// hang are given up within the test.
    pub(crate) fn configuration(&self, database: &str) -> String {
        let base = &self.base;
        let mut text = format!(
            r#"
[server]
listen = "127.0.0.1:0"
shutdown_s = 20

[storage]
url = "{database}"

[answers]
first_token_s = 2
between_tokens_s = 2

[peers]
allow_private = true
patience_s = 3

[providers.script]
kind = "scripted"

[agents.plain]
model = "script:plain"
[agents.plain.state.notes]
merge = "last"
"#
        );
        for (_, word) in MANNERS {
            for provider in PROVIDERS {
                write!(
                    text,
                    "\n[providers.{provider}_{word}]\nkind = \"{provider}\"\nbase_url = \"{base}/model/{word}/{provider}\"\napi_key = \"k\"\n\
                     \n[agents.{provider}_{word}]\nmodel = \"{provider}_{word}:m\"\nrecursion_limit = 8\n"
                )
                .unwrap();
            }
            write!(
                text,
                "\n[tools.tool_{word}]\nkind = \"http\"\ndescription = \"A tool for tests.\"\nurl = \"{base}/tool/{word}/call\"\ntimeout_s = 3\n\
                 parameters = {{ type = \"object\" }}\n\
                 \n[agents.tool_{word}]\nmodel = \"script:x\"\ntools = [\"tool_{word}\"]\n\
                 \n[mcp_servers.mcp_{word}]\nurl = \"{base}/mcp/{word}/mcp\"\nstart_timeout_s = 3\n\
                 \n[agents.mcp_{word}]\nmodel = \"script:x\"\ntools = [\"mcp_{word}/*\"]\n\
                 \n[agents.peer_{word}]\nmodel = \"script:x\"\n\
                 [[agents.peer_{word}.subagents]]\nname = \"elsewhere\"\ndescription = \"Works on another server.\"\n\
                 graph_id = \"agent\"\nurl = \"{base}/peer/{word}\"\nasync = false\n"
            )
            .unwrap();
        }
        write!(
            text,
            "\n[mcp_servers.schema]\nurl = \"{base}/mcp/schema/mcp\"\n\n[agents.mcp_schema]\nmodel = \"script:x\"\ntools = [\"schema/*\"]\n"
        )
        .unwrap();
        text
    }
}

/// Starts all parties.
pub(crate) async fn start() -> Parties {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // The client may close the connection at any time.
            tokio::spawn(async move { drop(answer(stream).await) });
        }
    });
    Parties { base }
}

/// Reads a request and answers it according to its path.
async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = vec![];
    let mut buffer = vec![0; 65_536];
    let body_at = loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..read]);
        if let Some(at) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&head[..body_at]).to_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    while head.len() < body_at + length.unwrap_or(0) {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..read]);
    }
    let path = text.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let mut parts = path.split('/').skip(1);
    let party = parts.next().unwrap_or_default();
    let word = parts.next().unwrap_or_default();
    if (party, word) == ("mcp", "schema") {
        return speak_mcp(&mut stream, &head[body_at..]).await;
    }
    let manner = MANNERS
        .iter()
        .find(|(_, known)| *known == word)
        .map(|(manner, _)| *manner);
    let Some(manner) = manner else {
        return write_json(&mut stream, &json!({})).await;
    };
    let kind = if party == "model" {
        "text/event-stream"
    } else {
        "application/json"
    };
    behave(&mut stream, manner, party, kind).await
}

async fn behave(stream: &mut TcpStream, manner: Manner, party: &str, kind: &str) -> std::io::Result<()> {
    let head = |status: &str, length: &str| format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{length}\r\n");
    let until_end = head("200 OK", "connection: close\r\n");
    match manner {
        Manner::Endless => {
            stream.write_all(until_end.as_bytes()).await?;
            repeat(stream, piece(party).as_bytes()).await
        }
        Manner::EndlessLine => {
            stream.write_all(until_end.as_bytes()).await?;
            stream.write_all(b"data: {\"content\":\"").await?;
            repeat(stream, &b"x".repeat(65_536)).await
        }
        Manner::Zeros => {
            stream.write_all(until_end.as_bytes()).await?;
            stream.write_all(b"{\"content\":\"\",\"artifact\":[0").await?;
            repeat(stream, ",0".repeat(32_768).as_bytes()).await
        }
        Manner::Deep => say(stream, &until_end, party, &nested(5_000)).await,
        Manner::RatherDeep => say(stream, &until_end, party, &nested(120)).await,
        Manner::Nul => say(stream, &until_end, party, "\"a\\u0000b\"").await,
        Manner::LongError => {
            stream
                .write_all(head("500 Internal Server Error", "connection: close\r\n").as_bytes())
                .await?;
            repeat(stream, &b"x".repeat(65_536)).await
        }
        Manner::Silent => wait_for_end(stream).await,
        Manner::Slow => {
            stream.write_all(until_end.as_bytes()).await?;
            loop {
                stream.write_all(b" ").await?;
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
        Manner::Half => {
            stream
                .write_all(head("200 OK", "content-length: 1000\r\n").as_bytes())
                .await
        }
        Manner::Garbage => stream.write_all(b"\x00\x01\x02 SSH-2.0 \r\n\r\n").await,
        Manner::Redirects => {
            let text =
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: /model/redirects/again\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(text.as_bytes()).await
        }
    }
}

/// Sends the same piece up to the limit, or until the client disconnects.
async fn repeat(stream: &mut TcpStream, piece: &[u8]) -> std::io::Result<()> {
    let mut written = 0;
    while written < ENDLESS {
        stream.write_all(piece).await?;
        written += piece.len();
    }
    Ok(())
}

async fn wait_for_end(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut byte = [0];
    stream.read(&mut byte).await.map(drop)
}

/// Returns a piece of an answer of this party.
fn piece(party: &str) -> String {
    if party == "model" {
        let delta = json!({"choices": [{"index": 0, "delta": {"content": "x".repeat(1000)}}]});
        return format!("data: {delta}\n\n");
    }
    format!("{{\"output\":\"{}\"}}\n", "x".repeat(1000))
}

/// Sends an answer with `value` as the arguments of a call, or as the result.
async fn say(stream: &mut TcpStream, head: &str, party: &str, value: &str) -> std::io::Result<()> {
    stream.write_all(head.as_bytes()).await?;
    let text = if party == "model" {
        let function = json!({"name": "ls", "arguments": format!("{{\"path\":{value}}}")});
        let call = json!({"index": 0, "id": "call_1", "type": "function", "function": function});
        let delta = json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        format!("data: {delta}\n\ndata: [DONE]\n\n")
    } else {
        format!(
            "{{\"content\":\"x\",\"artifact\":{value},\"update\":{{\"notes\":{value}}},\"values\":{value},\"thread_id\":{value}}}"
        )
    };
    stream.write_all(text.as_bytes()).await
}

fn nested(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

/// Answers like a valid MCP server, except for the schema of its only tool.
async fn speak_mcp(stream: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let result = match request["method"].as_str() {
        Some("initialize") => {
            let version = request["params"]["protocolVersion"].clone();
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}})
        }
        Some("tools/list") => {
            json!({"tools": [{"name": "find", "description": "Finds.", "inputSchema": doubling(24)}]})
        }
        Some("tools/call") => json!({"content": [{"type": "text", "text": "found"}]}),
        _ => {
            return stream
                .write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .await;
        }
    };
    write_json(
        stream,
        &json!({"jsonrpc": "2.0", "id": request["id"], "result": result}),
    )
    .await
}

async fn write_json(stream: &mut TcpStream, value: &Value) -> std::io::Result<()> {
    let text = value.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all([head, text].concat().as_bytes()).await
}

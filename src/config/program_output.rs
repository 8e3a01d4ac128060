//! The output of programs that print secrets.

use std::process::Stdio;
use std::time::Duration;

use secrecy::zeroize::Zeroizing;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The longest text with secrets, in bytes.
const MAX_TEXT_BYTES: u64 = 64 * 1024;

/// Returns the text that a program prints. The program is started without a shell and gets no input. What it writes to
/// standard error goes to that of this process. It is killed when it takes longer than `timeout`.
///
/// # Errors
/// Says why there is no such text, without any part of what the program has printed.
pub async fn output_of(command: &[String], timeout: Duration) -> Result<Zeroizing<String>, String> {
    let output = tokio::time::timeout(timeout, run(command)).await;
    output.unwrap_or_else(|_| Err(format!("it did not end within {} s", timeout.as_secs_f64())))
}

async fn run(command: &[String]) -> Result<Zeroizing<String>, String> {
    let (program, arguments) = command.split_first().ok_or_else(|| "no program is named".to_owned())?;
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn();
    let mut child = spawned.map_err(|error| error.to_string())?;
    let output = child
        .stdout
        .take()
        .ok_or_else(|| "it has no standard output".to_owned())?;
    let text = read_secrets(output).await?;
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("it failed: {status}"));
    }
    Ok(text)
}

/// Reads a text with secrets.
///
/// # Errors
/// Says why it cannot be read: it may be too long.
pub async fn read_secrets(source: impl AsyncRead + Unpin) -> Result<Zeroizing<String>, String> {
    let mut text = Zeroizing::new(String::new());
    let read = source.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text).await;
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_TEXT_BYTES {
        return Err(format!("it has more than {MAX_TEXT_BYTES} bytes"));
    }
    Ok(text)
}

use rmcp::model::NumberOrString;
use tokio::time::Instant;

use super::*;
use crate::domain::identity::UserId;
use crate::tool::progress::ProgressEvent;

fn token(number: i64) -> ProgressToken {
    ProgressToken(NumberOrString::Number(number))
}

fn progress(number: usize) -> Notice {
    let params = json!({"progress": number, "total": 10, "message": format!("step {number}")});
    Notice::Progress(token(1), Progress::read(&params).expect("a progress"))
}

fn line(text: &str) -> Notice {
    Notice::Log(LogLine::read(&json!({"level": "info", "data": text})).expect("a line"))
}

fn owner(name: &str) -> Ownership {
    Ownership {
        owner: UserId::new("owner", name).expect("a user"),
        ..Ownership::default()
    }
}

/// Returns a call with token 1, which is the only one of its connection.
fn alone() -> (OpenCalls, CallNotices) {
    let calls = OpenCalls::default();
    let notices = CallNotices::new(&Ownership::default());
    calls.add_call(token(1), notices.clone());
    (calls, notices)
}

fn payloads(notices: &CallNotices) -> Vec<Value> {
    notices.take().into_iter().map(|(_, payload)| payload).collect()
}

fn sent(clients: &ProgressSink) -> Vec<Value> {
    let events = clients.drain().into_iter().map(|event| match event {
        ProgressEvent::Notice(value) => value,
        other => panic!("{other:?}"),
    });
    events.collect()
}

fn event_of(name: &str, payload: Value) -> Value {
    json!({"name": name, "payload": payload})
}

#[test]
fn of_the_progress_that_waits_only_the_newest_is_sent() {
    let (calls, notices) = alone();
    for number in 0..100_000 {
        calls.deliver(progress(number));
    }
    let newest = json!({"progress": 99_999, "total": 10, "message": "step 99999"});
    assert_eq!(payloads(&notices), [newest]);
    assert!(payloads(&notices).is_empty());
}

#[test]
fn progress_of_another_call_and_of_one_that_is_over_is_ignored() {
    let (calls, notices) = alone();
    let foreign = Progress::read(&json!({"progress": 1})).expect("a progress");
    calls.deliver(Notice::Progress(token(2), foreign));
    assert!(payloads(&notices).is_empty());
    notices.end();
    calls.deliver(progress(1));
    calls.deliver(line("late"));
    assert!(payloads(&notices).is_empty());
}

#[test]
fn what_is_no_number_is_no_progress() {
    for params in [
        json!({}),
        json!({"progress": "half"}),
        json!({"progress": null}),
        json!(7),
    ] {
        assert_eq!(Progress::read(&params), None, "{params}");
    }
    assert_eq!(LogLine::read(&json!({"level": 7, "data": "x"})), None);
    assert_eq!(LogLine::read(&json!({"level": "info"})), None);
}

#[test]
fn lines_and_messages_are_bounded_in_length_number_and_size() {
    let (calls, notices) = alone();
    calls.deliver(line(&"x".repeat(100_000)));
    let long = json!({"level": "info", "data": {"list": vec![7; 100_000]}});
    calls.deliver(Notice::Log(LogLine::read(&long).expect("a line")));
    for number in 0..100 {
        calls.deliver(line(&number.to_string()));
    }
    let first = payloads(&notices);
    assert_eq!(first.len(), MAX_LINES);
    for payload in &first[..2] {
        assert_eq!(payload["data"].as_str().map(str::len), Some(MAX_CHARS));
    }
    calls.deliver(line("next"));
    assert_eq!(payloads(&notices)[0]["left_out"], 100 + 2 - MAX_LINES);

    let mut size = 0;
    for _ in 0..1_000 {
        calls.deliver(line(&"y".repeat(MAX_CHARS)));
        size += payloads(&notices)
            .iter()
            .map(|payload| payload.to_string().len())
            .sum::<usize>();
    }
    assert!(size < 2 * MAX_BYTES, "{size}");
    let talkative = json!({"progress": 1, "message": "z".repeat(MAX_CHARS)});
    let talkative = Progress::read(&talkative).expect("a progress");
    calls.deliver(Notice::Progress(token(1), talkative));
    assert_eq!(
        payloads(&notices),
        [json!({"progress": 1, "total": null, "message": null})]
    );
}

#[test]
fn a_line_belongs_to_the_only_call_and_to_none_of_two() {
    let (calls, first) = alone();
    calls.deliver(line("one"));
    assert_eq!(payloads(&first)[0]["data"], "one");
    let second = CallNotices::new(&Ownership::default());
    calls.add_call(token(2), second.clone());
    calls.deliver(line("whose"));
    assert!(payloads(&first).is_empty() && payloads(&second).is_empty());
    first.end();
    calls.deliver(line("two"));
    assert_eq!(payloads(&second)[0]["data"], "two");
}

#[test]
fn a_late_line_does_not_reach_the_call_of_another_user() {
    let calls = OpenCalls::default();
    let [first, second] = ["ann", "bob"].map(|name| CallNotices::new(&owner(name)));
    calls.add_call(token(1), first.clone());
    first.end();
    calls.add_call(token(2), second.clone());
    calls.deliver(line("about ann"));
    assert!(payloads(&second).is_empty());
}

#[tokio::test(start_paused = true)]
async fn notices_are_sent_less_and_less_often() {
    let (calls, notices) = alone();
    let clients = ProgressSink::default();
    let begun = Instant::now();
    let telling = async {
        let mut number = 0;
        while begun.elapsed() < Duration::from_secs(3_600) {
            calls.deliver(progress(number));
            number += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        calls.deliver(progress(number));
        notices.end();
        number
    };
    let counting = async {
        let mut events = vec![];
        while events.len() < 1_000 {
            match timeout(Duration::from_secs(120), clients.recv()).await {
                Ok(Some(event)) => events.push(event),
                Ok(None) | Err(_) => break,
            }
        }
        events
    };
    let sending = notices.send_to(&clients, event_of);
    let (last, events, ()) = tokio::join!(telling, counting, sending);
    assert!((200..400).contains(&events.len()), "{}", events.len());
    let newest = events.last().map(|event| match event {
        ProgressEvent::Notice(value) => value["payload"]["progress"].clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        newest,
        Some(json!(last)),
        "the newest is sent at the end, without a pause"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_told_nothing_about_sends_nothing() {
    let (_, notices) = alone();
    let clients = ProgressSink::default();
    let sending = notices.send_to(&clients, event_of);
    let ending = async { notices.end() };
    let ((), ()) = tokio::join!(sending, ending);
    assert!(sent(&clients).is_empty());
}

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::{AnswerHead, Chunk, Delta, Event, EventBody, Fact, Origin};
use crate::domain::id::{CheckpointId, RunId, TaskId};
use crate::domain::job::JobKind;
use crate::domain::machine::TOOLS;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::run::RunStatus;
use crate::domain::state::Update;

fn metrics() -> Metrics {
    let metrics = Metrics::new(Timestamp(1_700_000_000_500_000), ["lookup".to_owned()]);
    let names = |name: &str| [name.to_owned()].into_iter().collect();
    metrics.work().set_known_names(ConfiguredNames {
        agents: names("boss"),
        models: names("scripted:lab"),
    });
    metrics
}

fn origin(lane: Lane) -> Arc<Origin> {
    let path = vec!["boss".to_owned()];
    Arc::new(Origin {
        lane,
        namespace: vec![],
        agent: "boss".to_owned(),
        path,
        cause: None,
        visibility: Default::default(),
        display_text: None,
    })
}

fn event(lane: Lane, body: EventBody) -> Event {
    Event {
        seq: 1,
        run: RunId::mint(),
        at: Timestamp(0),
        origin: origin(lane),
        body,
    }
}

fn answer(tool: &str, status: ToolStatus) -> Update {
    let call = ToolCall::new("c1", tool, serde_json::Map::new());
    Update {
        messages: vec![Arc::new(Message::tool(&call, status, "text"))],
        ..Update::none()
    }
}

fn value(metrics: &Metrics, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |sample: &Sample| {
        labels
            .iter()
            .all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
    };
    samples(&metrics.text(None))
        .into_iter()
        .find(|sample| sample.name == name && has(sample))?
        .value
}

#[test]
fn the_end_of_a_run_is_counted_with_status_and_duration() {
    let metrics = metrics();
    let ended = || {
        EventBody::Fact(Fact::Ended {
            status: RunStatus::Success,
            error: None,
            waits: false,
            used: None,
        })
    };
    metrics
        .work()
        .record_event(&event(Lane::Main, ended()), Duration::from_millis(30));
    metrics
        .work()
        .record_event(&event(Lane::Child(RunId::mint()), ended()), Duration::from_secs(9));
    let labels = [("agent", "boss"), ("status", "success")];
    for kind in ["run", "subagent"] {
        let labels = [labels[0], labels[1], ("kind", kind)];
        assert_eq!(value(&metrics, "adjutant_runs_total", &labels), Some(1.0), "{kind}");
    }
    assert_eq!(
        value(&metrics, "adjutant_run_duration_seconds_sum", &labels[..1]),
        Some(0.03)
    );
}

#[test]
fn a_result_logged_before_its_step_is_counted_once() {
    let metrics = metrics();
    let writes = answer("lookup", ToolStatus::Success);
    let answered = Fact::Answered {
        head: CheckpointId::mint(),
        carried_from: None,
        call: 0,
        writes: writes.clone(),
    };
    metrics
        .work()
        .record_event(&event(Lane::Main, EventBody::Fact(answered)), Duration::ZERO);
    let entry = Entry {
        id: CheckpointId::mint(),
        parent: None,
        step: 1,
        source: CheckpointSource::Loop,
        node: TOOLS.to_owned(),
        writes: vec![writes, answer("lookup", ToolStatus::Error)],
        logged_writes: vec![0],
        carried_from: None,
    };
    metrics
        .work()
        .record_event(&event(Lane::Main, EventBody::Entry(Arc::new(entry))), Duration::ZERO);
    for outcome in ["success", "error"] {
        let labels = [("tool", "lookup"), ("outcome", outcome)];
        assert_eq!(
            value(&metrics, "adjutant_tool_calls_total", &labels),
            Some(1.0),
            "{outcome}"
        );
    }
}

#[test]
fn an_invented_tool_name_is_not_a_label() {
    let metrics = metrics();
    let calls = [
        ("made-up", ToolStatus::Error),
        ("built-in", ToolStatus::Success),
        ("built-in", ToolStatus::Error),
    ];
    for (tool, status) in calls {
        let fact = Fact::Answered {
            head: CheckpointId::mint(),
            carried_from: None,
            call: 0,
            writes: answer(tool, status),
        };
        metrics
            .work()
            .record_event(&event(Lane::Main, EventBody::Fact(fact)), Duration::ZERO);
    }
    let count = |tool, outcome| {
        value(
            &metrics,
            "adjutant_tool_calls_total",
            &[("tool", tool), ("outcome", outcome)],
        )
    };
    assert_eq!(count("made-up", "error"), None);
    assert_eq!(count("other", "error"), Some(1.0));
    assert_eq!(count("built-in", "error"), Some(1.0));
}

#[test]
fn agents_and_models_that_no_file_names_are_not_labels() {
    let metrics = metrics();
    metrics.work().set_known_names(ConfiguredNames::default());
    for _ in 0..3 {
        metrics.work().run_started("made up by a client", Duration::ZERO);
    }
    assert_eq!(
        value(
            &metrics,
            "adjutant_run_queue_wait_seconds_count",
            &[("agent", "client")]
        ),
        Some(3.0)
    );
    assert!(!metrics.text(None).contains("made up"));
}

#[test]
fn tokens_are_counted_when_an_answer_is_complete() {
    let metrics = metrics();
    let head = Arc::new(AnswerHead {
        message: "m".to_owned(),
        task: TaskId::of_step(None, "model", 0),
        step: 1,
        provider: "scripted".to_owned(),
        model: "lab".to_owned(),
    });
    let say = |chunk| {
        metrics.work().record_delta(
            &origin(Lane::Main),
            &Delta {
                answer: Arc::clone(&head),
                ordinal: 0,
                chunk,
            },
        );
    };
    say(Chunk::Begin);
    say(Chunk::Text("hello".to_owned()));
    say(Chunk::End {
        response_metadata: serde_json::Map::new(),
        usage: Some(json!({"input_tokens": 7, "output_tokens": 3})),
    });
    say(Chunk::Void);
    let model = ("model", "scripted:lab");
    assert_eq!(
        value(
            &metrics,
            "adjutant_model_tokens_total",
            &[model, ("direction", "input")]
        ),
        Some(7.0)
    );
    assert_eq!(
        value(
            &metrics,
            "adjutant_model_tokens_total",
            &[model, ("direction", "output")]
        ),
        Some(3.0)
    );
    for outcome in ["success", "error"] {
        let labels = [model, ("outcome", outcome)];
        assert_eq!(
            value(&metrics, "adjutant_model_calls_total", &labels),
            Some(1.0),
            "{outcome}"
        );
    }
}

#[test]
fn a_stream_is_open_until_it_is_dropped() {
    let metrics = metrics();
    let stream = metrics.traffic().stream();
    assert_eq!(value(&metrics, "adjutant_streams_open", &[]), Some(1.0));
    drop(stream);
    assert_eq!(value(&metrics, "adjutant_streams_open", &[]), Some(0.0));
}

#[test]
fn an_unknown_method_is_not_a_label() {
    let metrics = metrics();
    metrics
        .traffic()
        .record_response("BREW", "unknown", 404, Duration::ZERO);
    let labels = [("method", "other"), ("status", "404")];
    assert_eq!(value(&metrics, "adjutant_http_requests_total", &labels), Some(1.0));
}

#[test]
fn unknown_values_are_nan() {
    let metrics = metrics();
    assert!(metrics.text(None).contains("adjutant_queue_depth NaN"));
    assert_eq!(value(&metrics, "adjutant_queue_depth", &[]), None);
    let backlog = Backlog {
        at_work: 2,
        slots: 10,
        queued: 5,
        running: 3,
        oldest: Duration::from_millis(1500),
        jobs: vec![(JobKind::Webhook, 7)],
    };
    let text = metrics.text(Some(&backlog));
    assert!(
        text.contains("adjutant_queue_depth 5.0") && text.contains("adjutant_queue_oldest_age_seconds 1.5"),
        "{text}"
    );
    assert!(
        text.contains("adjutant_jobs{kind=\"webhook\"} 7.0") && text.contains("adjutant_jobs{kind=\"cron\"} 0.0"),
        "{text}"
    );
}

#[test]
fn samples_are_parsed_with_their_labels() {
    let text = "# HELP a b.\na_total{x=\"1,}\\\"\\n\",y=\"z\"} 4\nb NaN\n# EOF\n";
    let labels = [("x", "1,}\"\n"), ("y", "z")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let expected = [
        Sample {
            name: "a_total".to_owned(),
            labels: labels.into(),
            value: Some(4.0),
        },
        Sample {
            name: "b".to_owned(),
            labels: std::collections::BTreeMap::new(),
            value: None,
        },
    ];
    assert_eq!(samples(text), expected);
}

#[test]
fn the_memory_of_the_process_is_known_on_linux() {
    if cfg!(target_os = "linux") {
        assert!(value(&metrics(), "process_resident_memory_bytes", &[]).is_some_and(|bytes| bytes > 1e6));
    }
    assert_eq!(
        value(&metrics(), "process_start_time_seconds", &[]),
        Some(1_700_000_000.5)
    );
}

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::domain::message::ToolStatus;
use crate::domain::time::Timestamp;

fn rule(kind: &str, strategy: PiiStrategy) -> PiiRule {
    PiiRule {
        name: kind.into(),
        detector: Arc::new(Detector::new(PiiKind::named(kind), r"key-[a-z0-9]+").expect("a detector")),
        strategy,
    }
}

fn rewritten(kind: &str, strategy: PiiStrategy, text: &str) -> String {
    let rewritten = rule(kind, strategy).rewrite(text).expect("not blocked");
    rewritten.unwrap_or_else(|| text.to_owned())
}

/// Returns the text that a filter shows of these pieces.
fn streamed(rule: &PiiRule, pieces: &[&str]) -> String {
    let mut filter = PiiFilter::new(rule);
    let mut shown: String = pieces.iter().map(|piece| filter.push(piece)).collect();
    shown.push_str(&filter.finish().expect("not blocked"));
    shown
}

#[test]
fn each_kind_is_found_and_what_only_looks_like_it_is_not() {
    let cases = [
        (
            "email",
            "to jürgen.k+x@mail.example.co, or a@b",
            "to [REDACTED_EMAIL], or a@b",
        ),
        (
            "credit_card",
            "card 4111 1111 1111 1111.",
            "card [REDACTED_CREDIT_CARD].",
        ),
        (
            "credit_card",
            "no 1234 4111-1111-1111-1111 12 x",
            "no 1234 [REDACTED_CREDIT_CARD] 12 x",
        ),
        (
            "credit_card",
            "id 4111111111111112 and 0000000000000000",
            "id 4111111111111112 and 0000000000000000",
        ),
        (
            "credit_card",
            "long 94111111111111111119999999",
            "long 94111111111111111119999999",
        ),
        (
            "ip",
            "at 10.0.0.255, not 10.0.0.256 or v1.2.3.4x",
            "at [REDACTED_IP], not 10.0.0.256 or v1.2.3.4x",
        ),
        (
            "ip",
            "at 2001:db8::1 and ::1 at 12:30:45 in std::io",
            "at [REDACTED_IP] and [REDACTED_IP] at 12:30:45 in std::io",
        ),
        (
            "mac_address",
            "on 00:1B:44:11:3a:b7 or 001b.4411.3ab7",
            "on [REDACTED_MAC_ADDRESS] or [REDACTED_MAC_ADDRESS]",
        ),
        ("mac_address", "not 00:1B:44:11:3a:b7:99", "not 00:1B:44:11:3a:b7:99"),
        ("url", "(see HTTPS://example.com/a?b=c).", "(see [REDACTED_URL])."),
        (
            "url",
            "xhttp://a/?u=http://b/c, <www.d.e> and ftp://f\u{a0}g",
            "xhttp://a/?u=[REDACTED_URL], <[REDACTED_URL]> and [REDACTED_URL]\u{a0}g",
        ),
        ("own", "my key-abc9!", "my [REDACTED_OWN]!"),
    ];
    for (kind, text, expected) in cases {
        assert_eq!(rewritten(kind, PiiStrategy::Redact, text), expected);
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(
            streamed(&rule(kind, PiiStrategy::Redact), &pieces),
            expected,
            "streamed"
        );
    }
}

#[test]
fn a_text_of_many_candidates_that_are_none_is_read_in_time() {
    for part in ["ahttp://", "awww."] {
        let text = part.repeat(1_000_000 / part.len());
        let begun = Instant::now();
        assert!(!rule("url", PiiStrategy::Redact).is_in(&text), "{part}");
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{part}: {:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn masked_data_shows_a_part_and_a_hash_is_the_same_for_the_same_data() {
    let mask = |kind, text| rewritten(kind, PiiStrategy::Mask, text);
    assert_eq!(mask("email", "bob@example.com"), "b****@****.com");
    assert_eq!(mask("credit_card", "4111111111111111"), "**** **** **** 1111");
    assert_eq!(mask("ip", "10.1.2.3"), "*.*.*.3");
    assert_eq!(mask("mac_address", "00:1B:44:11:3a:b7"), "**:**:**:**:**:b7");
    assert_eq!(mask("own", "key-12345678"), "****5678");
    assert_eq!(mask("own", "key-1"), "****");
    let hash = |text| rewritten("email", PiiStrategy::Hash, text);
    assert_eq!(hash("bob@example.com"), hash("bob@example.com"));
    assert_ne!(hash("bob@example.com"), hash("eve@example.com"));
    assert!(hash("bob@example.com").starts_with("<email_hash:"));
}

#[test]
fn text_that_was_rewritten_stays_as_it_is() {
    for strategy in [PiiStrategy::Redact, PiiStrategy::Hash] {
        let rule = PiiRule {
            name: "api_key".into(),
            detector: Arc::new(Detector::new(PiiKind::Custom, "[A-Za-z0-9_]{8,}").expect("a detector")),
            strategy,
        };
        let rewrite = |text: &str| rule.rewrite(text).expect("not blocked").expect("a match");
        let once = rewrite("my key_12345678, and yours");
        assert_ne!(once, "my key_12345678, and yours");
        assert_eq!(rewrite(&once), once);
    }
}

/// Returns what the hook writes for a conversation with these messages, as texts.
async fn hook_writes(strategy: &str, messages: Vec<Message>) -> Result<Vec<String>, Halt> {
    let settings = json!({"type": "email", "strategy": strategy});
    let settings = settings.as_object().cloned().unwrap_or_default();
    let policy = Pii::default()
        .configured(&settings)
        .expect("settings")
        .expect("a policy");
    let messages: Vec<Arc<Message>> = messages.into_iter().map(Arc::new).collect();
    let state = State {
        messages: messages.into(),
        ..State::default()
    };
    let scope = Scope::sample(Timestamp(0));
    let written = policy.hook(HookPoint::BeforeModel, &scope, &state).await?;
    let texts = written.update.messages.iter().map(|message| message.content.text());
    Ok(texts.collect())
}

#[tokio::test]
async fn a_new_message_brings_the_earlier_conversation_and_a_later_step_does_not() {
    let own = || Message {
        name: Some("researcher".to_owned()),
        ..Message::ai("hello")
    };
    let mail = || Message::human("I am bob@example.com");
    let call = ToolCall::new("c", "find", Map::new());
    let found = Message::tool(&call, ToolStatus::Success, "found");
    let redacted = ["I am [REDACTED_EMAIL]"];
    let turn = vec![mail(), own(), Message::human("and now?")];
    assert_eq!(
        hook_writes("redact", turn.clone()).await,
        Ok(redacted.map(str::to_owned).to_vec())
    );
    assert_eq!(
        hook_writes("block", turn).await,
        Ok(vec![]),
        "it was refused when it arrived"
    );
    assert_eq!(hook_writes("redact", vec![mail(), own(), found]).await, Ok(vec![]));
    let foreign = vec![mail(), Message::ai("hello"), Message::human("and now?")];
    assert!(hook_writes("block", foreign).await.is_err());
}

#[test]
fn a_piece_is_held_back_only_while_it_may_be_a_part_of_the_data() {
    let mut filter = PiiFilter::new(&rule("email", PiiStrategy::Redact));
    assert_eq!(filter.push("Write to bo"), "Write to ");
    assert_eq!(filter.push("b@exam"), "");
    assert_eq!(filter.push("ple.com"), "");
    assert_eq!(filter.push(" today"), "[REDACTED_EMAIL] ");
    assert_eq!(filter.push(" or a@b"), "today or ");
    assert_eq!(filter.finish(), Ok("a@b".to_owned()));
}

#[test]
fn a_candidate_that_does_not_end_holds_the_rest_back_and_is_never_shown() {
    let rule = rule("own", PiiStrategy::Redact);
    let mut filter = PiiFilter::new(&rule);
    let long = format!("key-{}", "a".repeat(100_000));
    assert_eq!(filter.push("my "), "my ");
    let shown: String = long
        .as_bytes()
        .chunks(999)
        .map(|piece| filter.push(&String::from_utf8_lossy(piece)))
        .collect();
    assert_eq!(shown, "");
    assert_eq!(filter.push(" and more"), "");
    assert_eq!(filter.finish(), Ok("[REDACTED_OWN] and more".to_owned()));
}

#[test]
fn blocked_data_ends_the_answer_before_it_is_shown() {
    let mut filter = PiiFilter::new(&rule("ip", PiiStrategy::Block));
    assert_eq!(filter.push("at 10.0.0"), "at ");
    assert_eq!(filter.push(".1 it is"), "");
    let failure = filter.finish().expect_err("a failure");
    assert_eq!(failure.class, "PIIDetectionError");
    assert!(!failure.message.contains("10.0"));
}

proptest! {
    #[test]
    fn a_stream_shows_what_the_whole_text_shows(
        words in prop::collection::vec(prop_oneof![
            Just("bob@example.com"), Just("a@"), Just("4111 1111 1111 1111"), Just("10.0.0.1"), Just("::1"), Just("é"),
            Just("key-a1"), Just("key-"), Just("http://x.y/z."), Just("00:1B:44:11:3a:b7"), Just(" "), Just("."), Just("7"),
        ], 0..12),
        sizes in prop::collection::vec(1..7_usize, 1..40),
        kind in prop_oneof![Just("email"), Just("credit_card"), Just("ip"), Just("mac_address"), Just("url"), Just("own")],
    ) {
        let text = words.concat();
        let characters: Vec<char> = text.chars().collect();
        let mut pieces: Vec<String> = vec![];
        let mut at = 0;
        for size in sizes.iter().cycle() {
            if at >= characters.len() { break; }
            let end = (at + size).min(characters.len());
            pieces.push(characters[at..end].iter().collect());
            at = end;
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let rule = rule(kind, PiiStrategy::Redact);
        prop_assert_eq!(streamed(&rule, &pieces), rewritten(kind, PiiStrategy::Redact, &text));
    }
}

fn findings(settings: Value) -> Vec<String> {
    let settings = settings.as_object().cloned().unwrap_or_default();
    let findings = Pii::default().configured(&settings).err().unwrap_or_default();
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn settings_that_cannot_work_are_refused_with_the_way_out() {
    assert_eq!(findings(json!({"type": "email", "strategy": "hash"})), [""; 0]);
    assert_eq!(
        findings(json!({"type": "plate", "pattern": r"(?-u:\b)[A-Z]{2}[0-9]+"})),
        [""; 0]
    );
    let cases = [
        (
            json!({}),
            "type: must be one of email, credit_card, ip, mac_address, url, or a name",
        ),
        (
            json!({"type": "emial"}),
            "type: `emial` is not known; did you mean `email`?",
        ),
        (
            json!({"type": "email", "pattern": "x"}),
            "pattern: goes with a `type` of its own",
        ),
        (
            json!({"type": "own", "pattern": "(a"}),
            "pattern: is no regular expression",
        ),
        (
            json!({"type": "own", "pattern": "a*"}),
            "pattern: matches an empty text",
        ),
        (
            json!({"type": "own", "pattern": r"\bkey"}),
            "pattern: must write a word boundary as `(?-u:\\b)`",
        ),
        (
            json!({"type": "own", "pattern": "x".repeat(1_001)}),
            "pattern: must be a regular expression of 1 to 1000",
        ),
        (
            json!({"type": "own", "pattern": r"(\w{500}){500}"}),
            "pattern: is too large",
        ),
        (
            json!({"type": "ip", "apply_to_input": false}),
            "apply_to_input: is false like the others",
        ),
        (
            json!({"type": "ip", "strategy": "drop"}),
            "strategy: `drop` is not allowed",
        ),
    ];
    for (settings, expected) in cases {
        let reported = findings(settings);
        assert!(
            reported.len() == 1 && reported[0].starts_with(expected),
            "{expected}: {reported:?}"
        );
    }
}

#[test]
fn results_of_tools_are_rewritten_with_their_artifacts_and_blocked_ones_withheld() {
    let policy = |strategy: &str| {
        let settings = json!({"type": "email", "strategy": strategy, "apply_to_tool_results": true});
        let settings = settings.as_object().cloned().unwrap_or_default();
        Pii::default()
            .configured(&settings)
            .expect("settings")
            .expect("a policy")
    };
    let call = ToolCall::new("c", "find", Map::new());
    let received = |strategy: &str| {
        let mut message = Message::tool(&call, ToolStatus::Success, "it is bob@example.com");
        if let Role::Tool { artifact, .. } = &mut message.role {
            *artifact = Some(json!({"rows": [{"mail": "bob@example.com"}]}));
        }
        let answer = ToolOutput::message(message);
        let answer = policy(strategy).receive(&Scope::sample(Timestamp(0)), &State::default(), &call, answer);
        serde_json::to_string(&answer.writes).expect("JSON")
    };
    let redacted = received("redact");
    assert!(
        !redacted.contains("bob@") && redacted.matches("[REDACTED_EMAIL]").count() == 2,
        "{redacted}"
    );
    let blocked = received("block");
    assert!(
        !blocked.contains("bob@") && blocked.contains("was withheld"),
        "{blocked}"
    );
}

#[test]
fn the_text_of_a_document_is_looked_into() {
    let policy = |strategy| Pii {
        rule: Some(rule("email", strategy)),
        to_input: true,
        ..Pii::default()
    };
    let document = |data: &str| {
        let source = json!({"type": "text", "media_type": "text/plain", "data": data});
        Content::Blocks(vec![json!({"type": "document", "source": source})])
    };
    let message = Message::new(Role::Human, document("to bob@example.com"));
    let rewritten = policy(PiiStrategy::Redact).rewritten(&message).expect("not blocked");
    let rewritten = rewritten.expect("it has personal data").content;
    assert_eq!(rewritten, document("to [REDACTED_EMAIL]"));
    assert!(policy(PiiStrategy::Block).input_problem(&message).is_some());
}

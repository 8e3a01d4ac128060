use serde_json::json;

use super::*;

fn source(names: &[&str]) -> EventAgent {
    let path: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let namespace = if path.len() > 1 {
        format!("tools:{}", path.join("-"))
    } else {
        String::new()
    };
    EventAgent { namespace, path }
}

fn frame(names: &[&str], kind: FrameKind) -> ThreadFrame {
    ThreadFrame {
        seq: 1,
        id: "1".to_owned(),
        at: 0,
        source: source(names),
        kind,
    }
}

fn text(text: &str) -> FrameKind {
    FrameKind::Text {
        block: 0,
        text: text.to_owned(),
    }
}

fn view(is_live: bool) -> View {
    View::new(ViewStyle {
        has_colours: false,
        is_live,
        width: 80,
    })
}

fn play(view: &mut View, frames: &[(&[&str], FrameKind)]) -> String {
    let shown = frames
        .iter()
        .map(|(names, kind)| view.show(&frame(names, kind.clone())));
    shown.collect()
}

#[test]
fn an_answer_appears_piece_by_piece_under_the_name_of_its_agent() {
    let mut view = view(true);
    assert_eq!(view.show(&frame(&["editor"], text("Hello"))), "editor │ Hello");
    assert_eq!(view.show(&frame(&["editor"], text(" you\nand"))), " you\neditor │ and");
    assert_eq!(view.show(&frame(&["editor"], FrameKind::MessageFinished)), "\n");
}

#[test]
fn agents_that_speak_at_the_same_time_do_not_share_a_line() {
    let mut view = view(true);
    let one: &[&str] = &["editor", "one"];
    let other: &[&str] = &["editor", "other"];
    let shown = play(
        &mut view,
        &[
            (one, text("first ")),
            (other, text("second\nthird")),
            (one, text("line")),
            (one, FrameKind::MessageFinished),
            (other, text(" line")),
            (other, FrameKind::MessageFinished),
        ],
    );
    assert_eq!(shown, "  one │ first line\n  other │ second\n  other │ third line\n");
}

#[test]
fn without_a_terminal_only_whole_lines_are_written() {
    let mut view = view(false);
    assert_eq!(view.show(&frame(&["editor"], text("Hel"))), "");
    assert_eq!(view.show(&frame(&["editor"], text("lo\nyou"))), "editor │ Hello\n");
    assert_eq!(
        view.show(&frame(&["editor"], FrameKind::MessageFinished)),
        "editor │ you\n"
    );
}

#[test]
fn the_whole_text_of_an_answer_adds_only_what_has_not_come() {
    let mut view = view(true);
    let whole = FrameKind::TextFinished {
        block: 0,
        text: "Hello you".to_owned(),
    };
    let frames: [(&[&str], FrameKind); 3] = [
        (&["editor"], text("Hello")),
        (&["editor"], whole),
        (&["editor"], FrameKind::MessageFinished),
    ];
    assert_eq!(play(&mut view, &frames), "editor │ Hello you\n");
}

#[test]
fn an_answer_that_is_asked_for_again_is_told_apart() {
    let mut view = view(true);
    let begins = |message: &str| FrameKind::MessageStarted {
        message: message.to_owned(),
    };
    let frames: [(&[&str], FrameKind); 4] = [
        (&["editor"], begins("1")),
        (&["editor"], text("Hel")),
        (&["editor"], begins("2")),
        (&["editor"], text("Hello")),
    ];
    let shown = play(&mut view, &frames);
    assert!(
        shown.starts_with("editor │ Hel\neditor │ the answer broke off"),
        "{shown}"
    );
    assert!(shown.ends_with("\neditor │ Hello"), "{shown}");
}

#[test]
fn calls_results_and_todos_are_single_lines() {
    let mut view = view(true);
    let todos =
        json!({"todos": [{"content": "Plan", "status": "completed"}, {"content": "Write", "status": "pending"}]});
    let call = |call: &str, tool: &str, args: &Value| FrameKind::ToolStarted {
        call: call.to_owned(),
        tool: tool.to_owned(),
        args: args.clone(),
    };
    let result = FrameKind::ToolFinished {
        call: "b".to_owned(),
        output: "Otters\nswim.".to_owned(),
        is_error: false,
    };
    let frames: [(&[&str], FrameKind); 4] = [
        (&["editor"], call("a", "write_todos", &todos)),
        (&["editor"], call("a", "write_todos", &todos)),
        (&["editor"], call("b", "lookup", &json!({"query": "otters"}))),
        (&["editor"], result),
    ];
    let expected =
        "editor │ [x] Plan\neditor │ [ ] Write\neditor │ → lookup(query=\"otters\")\neditor │ ← lookup: Otters swim.\n";
    assert_eq!(play(&mut view, &frames), expected);
}

#[test]
fn an_agent_cannot_drive_the_terminal() {
    let attack = "\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\r\u{202e}";
    let calls = FrameKind::ToolStarted {
        call: "a".to_owned(),
        tool: attack.to_owned(),
        args: json!({attack: attack}),
    };
    let ends = FrameKind::RunEnded {
        run: "r".to_owned(),
        end: RunSummary {
            outcome: Outcome::Failed,
            reason: attack.to_owned(),
            usage: Value::Null,
        },
    };
    let failed = FrameKind::MessageFailed {
        reason: attack.to_owned(),
    };
    let custom = FrameKind::Custom { data: json!(attack) };
    let names: &[&str] = &["editor", attack];
    let shown = play(
        &mut view(true),
        &[
            (names, text(attack)),
            (names, failed),
            (names, calls),
            (names, custom),
            (names, ends),
        ],
    );
    assert!(
        !shown.chars().any(|letter| letter.is_control() && letter != '\n'),
        "{shown:?}"
    );
    assert!(!shown.contains('\u{202e}'), "{shown:?}");
}

#[test]
fn colours_do_not_count_as_width() {
    assert_eq!(plain_width("\u{1b}[36meditor │\u{1b}[0m "), "editor │ ".width());
}

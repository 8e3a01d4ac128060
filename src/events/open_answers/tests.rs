use super::*;
use crate::domain::event::{AgentWork, Origin};
use crate::domain::id::TaskId;
use crate::domain::time::Timestamp;

/// A run whose agents answer.
struct Play {
    run: RunId,
    seq: i64,
}

/// An answer with its agent.
struct AnsweringAgent {
    origin: Arc<Origin>,
    head: Arc<AnswerHead>,
    ordinal: u32,
}

impl Play {
    fn new() -> Self {
        Self {
            run: RunId::mint(),
            seq: 0,
        }
    }

    fn event(&mut self, origin: &Arc<Origin>, body: EventBody) -> SlotContent {
        self.seq += 1;
        SlotContent::Visible(Arc::new(Event {
            seq: self.seq,
            run: self.run,
            at: Timestamp(0),
            origin: Arc::clone(origin),
            body,
        }))
    }

    fn piece(&mut self, agent: &mut AnsweringAgent, chunk: Chunk) -> SlotContent {
        let delta = Delta {
            answer: Arc::clone(&agent.head),
            ordinal: agent.ordinal,
            chunk,
        };
        agent.ordinal += 1;
        let origin = Arc::clone(&agent.origin);
        self.event(&origin, EventBody::Delta(delta))
    }
}

fn agent(message: &str, lane: Lane) -> AnsweringAgent {
    let origin = Origin {
        lane,
        namespace: vec![],
        agent: String::new(),
        path: vec![],
        cause: None,
        visibility: Default::default(),
        display_text: None,
    };
    let head = AnswerHead {
        message: message.to_owned(),
        task: TaskId::of_step(None, "model", 0),
        step: 1,
        provider: "lab".to_owned(),
        model: "m".to_owned(),
    };
    AnsweringAgent {
        origin: Arc::new(origin),
        head: Arc::new(head),
        ordinal: 0,
    }
}

fn text(text: &str) -> Chunk {
    Chunk::Text(text.to_owned())
}

fn call(id: Option<&str>, args: &str) -> Chunk {
    Chunk::Call {
        index: 0,
        id: id.map(str::to_owned),
        name: id.map(|_| "write".to_owned()),
        args: args.to_owned(),
    }
}

/// Returns the pieces as their message, number and content.
fn shown(answers: &OpenAnswers, run: RunId) -> Vec<String> {
    let show = |event: Arc<Event>| match &event.body {
        EventBody::Delta(Delta { answer, ordinal, chunk }) => format!("{} {ordinal} {chunk:?}", answer.message),
        EventBody::Entry(_) | EventBody::Fact(_) | EventBody::Begun(_) | EventBody::Output { .. } => {
            panic!("{event:?}")
        }
    };
    answers.clone().into_events(run).into_iter().map(show).collect()
}

#[test]
fn the_pieces_of_all_agents_stand_in_the_order_of_the_log() {
    let mut play = Play::new();
    let mut main = agent("m", Lane::Main);
    let mut child = agent("c", Lane::Child(RunId::mint()));
    let mut answers = OpenAnswers::default();
    answers.add(&play.event(&Arc::clone(&main.origin), EventBody::Begun(AgentWork::Model)));
    answers.add(&play.piece(&mut main, Chunk::Begin));
    answers.add(&play.piece(&mut child, Chunk::Begin));
    answers.add(&play.piece(&mut main, text("one ")));
    answers.add(&play.piece(&mut child, text("two")));
    answers.add(&SlotContent::Reserved);
    let expected = ["m 0 Begin", "c 0 Begin", "m 1 Text(\"one \")", "c 1 Text(\"two\")"];
    assert_eq!(shown(&answers, play.run), expected);
    assert_eq!(shown(&answers, RunId::mint()), Vec::<String>::new());
}

#[test]
fn texts_that_memory_drops_are_joined_and_the_next_piece_follows_in_number() {
    let mut play = Play::new();
    let mut main = agent("m", Lane::Main);
    let mut answers = OpenAnswers::default();
    let chunks = [
        Chunk::Begin,
        Chunk::Reasoning("so ".to_owned()),
        Chunk::Reasoning("it is".to_owned()),
        text("one "),
        text("two "),
        call(Some("c1"), ""),
        call(None, "{\"a\""),
        call(None, ":1}"),
        call(Some("c2"), "{}"),
    ];
    for chunk in chunks {
        answers.join(&play.piece(&mut main, chunk));
    }
    answers.add(&play.piece(&mut main, text("three")));
    let shown = shown(&answers, play.run);
    assert_eq!(shown.len(), 6, "{shown:#?}");
    assert_eq!(shown[0], "m 4 Begin");
    assert_eq!(shown[1], "m 5 Reasoning(\"so it is\")");
    assert_eq!(shown[2], "m 6 Text(\"one two \")");
    assert!(
        shown[3].starts_with("m 7 Call") && shown[3].contains(r#"{\"a\":1}"#),
        "{}",
        shown[3]
    );
    assert!(shown[4].starts_with("m 8 Call"), "{}", shown[4]);
    assert_eq!(shown[5], "m 9 Text(\"three\")");
}

#[test]
fn an_answer_ends_with_the_step_of_its_agent() {
    let mut play = Play::new();
    let lane = Lane::Child(RunId::mint());
    let mut main = agent("m", Lane::Main);
    let mut child = agent("c", lane);
    let mut answers = OpenAnswers::default();
    answers.add(&play.piece(&mut main, Chunk::Begin));
    answers.add(&play.piece(&mut child, Chunk::Begin));
    answers.add(&play.event(&Arc::clone(&main.origin), EventBody::Fact(Fact::Paused)));
    answers.add(&SlotContent::Stored(None));
    assert_eq!(shown(&answers, play.run), ["m 0 Begin", "c 0 Begin"]);
    answers.add(&play.event(&Arc::clone(&main.origin), EventBody::Fact(Fact::Undone)));
    assert_eq!(shown(&answers, play.run), ["c 0 Begin"]);
    answers.add(&SlotContent::Stored(Some(lane)));
    assert_eq!(shown(&answers, play.run), Vec::<String>::new());
}

#[test]
fn an_answer_that_is_void_or_lacks_a_piece_is_forgotten() {
    let mut play = Play::new();
    let mut first = agent("m", Lane::Main);
    let mut second = agent("n", Lane::Main);
    let mut answers = OpenAnswers::default();
    answers.add(&play.piece(&mut first, Chunk::Begin));
    answers.add(&play.piece(&mut second, Chunk::Begin));
    answers.add(&play.piece(&mut first, Chunk::Void));
    assert_eq!(shown(&answers, play.run), ["n 0 Begin"]);
    second.ordinal += 1;
    answers.add(&play.piece(&mut second, text("two")));
    answers.add(&play.piece(&mut second, text("three")));
    assert_eq!(shown(&answers, play.run), Vec::<String>::new());
}

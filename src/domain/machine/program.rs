//! The single step of an agent that is a program: it receives the whole state, and its result is the end of the run.

use super::{
    CheckpointId, CheckpointSource, Entry, Interrupt, InterruptSource, Machine, Phase, Question, QuestionKind, TaskId,
    Update, Value,
};

impl Machine {
    /// Records that the program is about to start. Read back after a crash: its outcome is unknown.
    pub fn program_started(&mut self) {
        self.mark_work(true);
    }

    /// Lets the program run again without a question: a client has asked for a run from an older checkpoint, after which
    /// the program had a result.
    pub fn repeat_program(&mut self) {
        self.mark_work(false);
    }

    fn mark_work(&mut self, is_begun: bool) {
        if let Phase::Work { begun, .. } = &mut self.position.phase {
            *begun = is_begun;
        }
    }

    /// Returns the node of the program.
    pub fn program_node(&self) -> &str {
        match &self.position.phase {
            Phase::Work { node, .. } => node,
            Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Tools { .. } | Phase::Ended => "",
        }
    }

    /// Returns whether the program was started and its outcome is unknown.
    pub fn program_was_started(&self) -> bool {
        matches!(self.position.phase, Phase::Work { begun: true, .. })
    }

    /// Records that the program raised interrupts, or that a human has to decide about an unknown outcome. It runs
    /// again when all of them are answered.
    pub fn program_asked(&mut self, questions: Vec<Question>) -> Vec<Interrupt> {
        let is_unknown = |question: &Question| question.kind == QuestionKind::UnknownOutcome;
        self.mark_work(questions.iter().any(is_unknown));
        let task = self.program_task();
        let asker = self.program_source();
        self.ask(task, asker, questions)
    }

    /// Returns the program as the source of interrupts.
    pub fn program_source(&self) -> InterruptSource {
        InterruptSource::Hook(self.program_node().to_owned())
    }

    /// Removes and returns the decision about the unknown outcome of the program, if there is one. It is valid for
    /// this outcome only.
    pub fn take_program_decision(&mut self) -> Option<Value> {
        let is_verdict = |i: &Interrupt| i.question.kind == QuestionKind::UnknownOutcome && i.answer.is_some();
        let at = self.position.asked.iter().position(is_verdict)?;
        self.position.asked.remove(at).answer
    }

    /// Records an update of the program before its result.
    pub fn program_wrote(&mut self, update: Update, id: CheckpointId) -> Entry {
        self.state.apply(&update);
        let node = self.program_node().to_owned();
        self.append_entry(id, CheckpointSource::Loop, &node, vec![update])
    }

    /// Records the result of the program.
    pub fn program_done(&mut self, update: Update, id: CheckpointId) -> Entry {
        self.position.taken += 1;
        self.end_questions();
        let entry = self.program_wrote(update, id);
        self.position.phase = Phase::Ended;
        entry
    }

    /// Returns the task of the program, which is the same if it runs again.
    pub fn program_task(&self) -> TaskId {
        self.task(self.program_node())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::domain::machine::{MODEL, Plan, Position, RUNNABLE, Step};
    use crate::domain::message::Message;

    fn question(kind: QuestionKind) -> Question {
        Question {
            kind,
            value: json!("?"),
            schema: json!({}).into(),
            calls: vec![],
            key: None,
            approvers: Default::default(),
            ..Question::default()
        }
    }

    #[test]
    fn a_program_runs_after_the_input_and_ends_the_run() {
        let plan = Plan {
            step_limit: 9,
            program: Some(RUNNABLE),
            ..Plan::default()
        };
        let mut machine = Machine::default();
        let ids = [CheckpointId::mint(), CheckpointId::mint()];
        machine.begin(&plan, Update::messages([Message::human("go")]), ids);
        assert_eq!(machine.next(&plan), Step::Work);
        assert!(!machine.program_was_started());
        machine.program_started();
        let stored = serde_json::to_value(&machine.position).expect("it can be stored");
        machine.position = serde_json::from_value::<Position>(stored).expect("it can be read");
        assert!(machine.program_was_started());
        let entry = machine.program_done(Update::messages([Message::ai("done")]), CheckpointId::mint());
        assert_eq!(entry.node.as_str(), RUNNABLE);
        assert_eq!(machine.next(&plan), Step::End);
        assert_eq!(machine.state.messages.len(), 2);
    }

    #[test]
    fn a_program_that_asks_has_no_unknown_outcome() {
        let plan = Plan {
            step_limit: 9,
            program: Some(RUNNABLE),
            ..Plan::default()
        };
        let mut machine = Machine {
            position: Position {
                phase: Phase::Work {
                    node: RUNNABLE.to_owned(),
                    begun: true,
                },
                ..Position::default()
            },
            ..Machine::default()
        };
        let about = machine
            .program_asked(vec![question(QuestionKind::UnknownOutcome)])
            .remove(0)
            .id;
        assert_eq!(machine.next(&plan), Step::Park);
        assert!(machine.program_was_started());
        assert!(machine.resolve(&about, json!("again")));
        assert_eq!(machine.take_program_decision(), Some(json!("again")));
        assert_eq!(machine.take_program_decision(), None, "it holds once");
        let own = machine
            .program_asked(vec![question(QuestionKind::Question)])
            .remove(0)
            .id;
        assert!(machine.resolve(&own, json!("this")) && !machine.program_was_started());
        let answers = machine.answers_to(&InterruptSource::Hook(RUNNABLE.to_owned()));
        assert_eq!(answers, [(Arc::new(question(QuestionKind::Question)), json!("this"))]);
        assert_eq!(machine.next(&plan), Step::Work);
    }

    #[test]
    fn a_program_with_several_questions_continues_when_all_are_answered() {
        let plan = Plan {
            step_limit: 9,
            program: Some(MODEL),
            ..Plan::default()
        };
        let mut machine = Machine::default();
        let ids = [CheckpointId::mint(), CheckpointId::mint()];
        machine.begin(&plan, Update::messages([Message::human("go")]), ids);
        assert_eq!(machine.program_task(), TaskId::of_step(machine.head, MODEL, 0));
        let two = || vec![question(QuestionKind::Question), question(QuestionKind::ToolApproval)];
        let asked = machine.program_asked(two());
        assert_eq!(asked.len(), 2);
        assert!(machine.resolve(&asked[1].id, json!("second")));
        assert_eq!(machine.next(&plan), Step::Park);
        assert!(machine.resolve(&asked[0].id, json!("first")));
        assert_eq!(machine.next(&plan), Step::Work);
        let given: Vec<Value> = machine
            .answers_to(&machine.program_source())
            .into_iter()
            .map(|(_, answer)| answer)
            .collect();
        assert_eq!(given, [json!("first"), json!("second")]);
        let again = machine.program_asked(two());
        assert!(
            again
                .iter()
                .all(|asked| machine.open_questions().any(|open| open == asked))
        );
        assert_eq!(machine.open_questions().count(), 2);
        assert_eq!(machine.position.questions, 4);
        let on_the_way = machine.program_wrote(Update::messages([Message::ai("hm")]), CheckpointId::mint());
        assert_eq!(on_the_way.node, MODEL);
        assert_eq!(machine.position.taken, 0);
    }
}

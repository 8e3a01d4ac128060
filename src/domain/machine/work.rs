//! The one step of an agent that is a program: it takes the whole state, and what it writes is the end of the run.

use super::{
    Asker, CheckpointId, Entry, Interrupt, Machine, Phase, Question, QuestionKind, RUNNABLE, Source, TaskId, Update,
    Value,
};

impl Machine {
    /// Notes that the program is about to begin. Read back after a crash this means: its outcome is unknown.
    pub fn work_begins(&mut self) {
        self.position.phase = Phase::Work { begun: true };
    }

    /// Whether the program was begun and nobody knows what came of it.
    pub fn work_was_begun(&self) -> bool {
        self.position.phase == Phase::Work { begun: true }
    }

    /// The program asks a human, or somebody has to say what shall become of it. It is looked at again with the answer.
    pub fn work_asked(&mut self, question: Question) -> Option<&Interrupt> {
        let begun = question.kind == QuestionKind::UnknownOutcome;
        self.position.phase = Phase::Work { begun };
        let task = self.work_task();
        self.ask(task, Asker::Hook(RUNNABLE.to_owned()), question)
    }

    /// Takes the answer about the unknown outcome of the program, if there is one: it holds for this outcome and no later
    /// one.
    pub fn take_verdict_on_work(&mut self) -> Option<Value> {
        let is_verdict = |i: &Interrupt| i.question.kind == QuestionKind::UnknownOutcome && i.answer.is_some();
        let at = self.position.asked.iter().position(is_verdict)?;
        self.position.asked.remove(at).answer
    }

    /// The program came to its end and writes `update`.
    pub fn work_done(&mut self, update: Update, id: CheckpointId) -> Entry {
        self.position.taken += 1;
        self.forget_questions();
        self.state.apply(&update);
        let entry = self.enter(id, Source::Loop, RUNNABLE, vec![update]);
        self.position.phase = Phase::Ended;
        entry
    }

    /// The task of the program: the same when it is run again.
    pub fn work_task(&self) -> TaskId {
        TaskId::of_step(self.head, RUNNABLE, 0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::machine::{Plan, Position, Step};
    use crate::domain::message::Message;

    fn question(kind: QuestionKind) -> Question {
        Question {
            kind,
            value: json!("?"),
            schema: json!({}),
            calls: vec![],
            passed_on: None,
        }
    }

    #[test]
    fn a_program_runs_after_the_input_and_its_end_is_the_end() {
        let plan = Plan {
            step_limit: 9,
            is_work: true,
            ..Plan::default()
        };
        let mut machine = Machine::default();
        let ids = [CheckpointId::mint(), CheckpointId::mint()];
        machine.begin(&plan, Update::messages([Message::human("go")]), ids);
        assert_eq!(machine.next(&plan), Step::Work);
        assert_eq!(machine.work_was_begun(), false);
        machine.work_begins();
        let stored = serde_json::to_value(&machine.position).expect("it can be stored");
        machine.position = serde_json::from_value::<Position>(stored).expect("it can be read");
        assert!(machine.work_was_begun());
        let entry = machine.work_done(Update::messages([Message::ai("done")]), CheckpointId::mint());
        assert_eq!(entry.node.as_str(), RUNNABLE);
        assert_eq!(machine.next(&plan), Step::End);
        assert_eq!(machine.state.messages.len(), 2);
    }

    #[test]
    fn a_question_of_the_program_leaves_no_doubt_and_one_about_it_does() {
        let plan = Plan {
            step_limit: 9,
            is_work: true,
            ..Plan::default()
        };
        let mut machine = Machine {
            position: Position {
                phase: Phase::Work { begun: true },
                ..Position::default()
            },
            ..Machine::default()
        };
        let about = machine
            .work_asked(question(QuestionKind::UnknownOutcome))
            .expect("it is asked")
            .id
            .clone();
        assert_eq!(machine.next(&plan), Step::Park);
        assert_eq!(machine.work_was_begun(), true);
        assert!(machine.resolve(&about, json!("again")));
        assert_eq!(machine.take_verdict_on_work(), Some(json!("again")));
        assert_eq!(machine.take_verdict_on_work(), None, "it holds once");
        let own = machine
            .work_asked(question(QuestionKind::Question))
            .expect("it is asked")
            .id
            .clone();
        assert!(machine.resolve(&own, json!("this")) && !machine.work_was_begun());
        assert_eq!(
            machine.answer_to(&Asker::Hook(RUNNABLE.to_owned())),
            Some(&json!("this"))
        );
        assert_eq!(machine.next(&plan), Step::Work);
    }
}

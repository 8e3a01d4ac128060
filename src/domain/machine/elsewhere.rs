//! What becomes of a machine whose model is an agent on another server: that may ask humans, and tells what it did.

use super::{
    Asker, CheckpointId, Entry, Interrupt, InterruptId, MODEL, Machine, Phase, Question, Source, TaskId, Update,
};

impl Machine {
    /// What stands in for the model asks humans, and will be asked again when all of it is answered.
    pub fn model_asked(&mut self, questions: Vec<Question>) -> Vec<Interrupt> {
        if self.position.phase != Phase::Model {
            return vec![];
        }
        let task = TaskId::of_step(self.head, MODEL, 0);
        self.position.asked.clear();
        for (question, number) in questions.into_iter().zip(self.position.questions..) {
            let id = InterruptId::of_task(task, number);
            let asker = Asker::Hook(MODEL.to_owned());
            self.position.asked.push(Interrupt {
                id,
                task,
                asker,
                question,
                answer: None,
            });
            self.position.questions = number + 1;
        }
        self.position.asked.clone()
    }

    /// What stands in for the model wrote this on the way to its answer, which follows.
    pub fn model_heard(&mut self, update: Update, id: CheckpointId) -> Entry {
        self.state.apply(&update);
        self.enter(id, Source::Loop, MODEL, vec![update])
    }
}

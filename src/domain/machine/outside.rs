//! What clients do to a machine that no run moves: they write into its state, or send it elsewhere.

use super::{Asker, CheckpointId, Entry, MODEL, Machine, Moment, Phase, Plan, Position, START, Source, TOOLS, Update};

impl Machine {
    /// Writes `update` from outside the loop, as if `node` had written it.
    pub fn written(&mut self, plan: &Plan, source: Source, node: &str, update: Update, id: CheckpointId) -> Entry {
        self.state.apply(&update);
        self.position = Position::default();
        let entry = self.enter(id, source, node, vec![update]);
        self.arrive_after(plan, node);
        entry
    }

    /// Writes `update` from outside the loop and stays where the run stands.
    pub fn noted(&mut self, update: Update, id: CheckpointId) -> Entry {
        self.state.apply(&update);
        self.enter(id, Source::Update, START, vec![update])
    }

    /// Goes to where the loop goes after `node`.
    fn arrive_after(&mut self, plan: &Plan, node: &str) {
        let after_hook = |moment| plan.hooks(moment).iter().position(|name| name == node).map(|at| (moment, at + 1));
        match node {
            START => self.arrive(plan, Moment::BeforeAgent, 0),
            MODEL => self.arrive(plan, Moment::AfterModel, 0),
            TOOLS => self.arrive(plan, Moment::BeforeModel, 0),
            _ => match [Moment::BeforeAgent, Moment::BeforeModel, Moment::AfterModel, Moment::AfterAgent]
                .into_iter()
                .find_map(after_hook)
            {
                Some((moment, next)) => self.arrive(plan, moment, next),
                None => self.position.phase = Phase::Ended,
            },
        }
    }

    /// Goes straight to `node`, when the agent has it.
    pub fn go_to(&mut self, plan: &Plan, node: &str) -> bool {
        match node {
            MODEL => {
                self.forget_questions();
                self.position.phase = Phase::Model;
            }
            TOOLS => {
                self.position.asked.retain(|asked| matches!(asked.asker, Asker::Call(_)));
                let before = std::mem::take(&mut self.position.phase);
                self.arrive_at_tools(plan);
                // What has begun must not begin once more, as when a client's command is obeyed again after a crash.
                if let (Phase::Tools { calls: known }, Phase::Tools { calls }) = (before, &mut self.position.phase) {
                    for call in calls {
                        if let Some(begun) = known.iter().find(|other| other.id == call.id) {
                            call.clone_from(begun);
                        }
                    }
                }
            }
            _ => return false,
        }
        true
    }
}

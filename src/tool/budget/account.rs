//! The limits of the account on whose behalf a run works. Other runs of the account count, too.

use std::fmt;

use async_trait::async_trait;

use super::refused::Refused;
use crate::domain::message::Message;
use crate::domain::time::Timestamp;

/// The limits of an account, and the prices of models.
#[async_trait]
pub trait AccountLimits: Send + Sync + fmt::Debug {
    /// Checks whether the account may make a further model call.
    ///
    /// # Errors
    /// [`Refused::Quota`] if a quota is used up; [`Refused::Away`] if the use is not known at the moment.
    async fn check_model_call(&self, now: Timestamp) -> Result<(), Refused>;

    /// Returns the cost of an answer, in millionths; 0 if its model has no price.
    fn cost_of(&self, answer: &Message) -> u64;
}

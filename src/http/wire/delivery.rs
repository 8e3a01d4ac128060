//! Deliveries of webhooks on the wire.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::delivery::{Delivery, DeliveryStatus};

/// The report of a run that ended, on its way to the address that the request named.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Delivery")]
pub struct DeliveryView {
    /// Identifies it; each attempt has it in the header `webhook-id`.
    pub delivery_id: Uuid,
    /// The run.
    pub run_id: Uuid,
    /// The thread of the run. It may be gone.
    pub thread_id: Uuid,
    /// Where it goes.
    pub url: String,
    /// How it stands.
    pub status: DeliveryStatusWord,
    /// How often it was tried since it was made or asked for again.
    pub attempts: u32,
    /// When it is tried next; null when it is not, or is being tried now.
    #[schema(format = DateTime)]
    pub next_attempt_at: Option<String>,
    /// The status with which the address answered the last attempt, if it answered.
    pub response_status: Option<u16>,
    /// Why the last attempt failed, if it did.
    pub error: Option<String>,
    /// When the run ended.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it arrived or was given up.
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    /// What is sent; shown only when one delivery is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
}

/// How a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatusWord {
    /// It is tried, or will be.
    Pending,
    /// It has arrived.
    Delivered,
    /// It was given up.
    Dead,
}

impl From<DeliveryStatus> for DeliveryStatusWord {
    fn from(status: DeliveryStatus) -> Self {
        match status {
            DeliveryStatus::Pending => Self::Pending,
            DeliveryStatus::Delivered => Self::Delivered,
            DeliveryStatus::Dead => Self::Dead,
        }
    }
}

impl From<Delivery> for DeliveryView {
    /// Without what is sent.
    fn from(delivery: Delivery) -> Self {
        Self {
            delivery_id: delivery.id.0,
            run_id: delivery.run.0,
            thread_id: delivery.thread.0,
            url: delivery.url,
            status: delivery.status.into(),
            attempts: delivery.attempts,
            next_attempt_at: delivery.next_attempt_at.map(|at| at.to_string()),
            response_status: delivery.answer,
            error: delivery.error,
            created_at: delivery.created_at.to_string(),
            finished_at: delivery.finished_at.map(|at| at.to_string()),
            payload: None,
        }
    }
}

impl DeliveryView {
    /// With what is sent.
    pub fn whole(delivery: Delivery) -> Self {
        let payload = serde_json::from_str(&delivery.body).ok();
        Self {
            payload,
            ..Self::from(delivery)
        }
    }
}

//! The view of an operator: traces, the ids of requests, the access log, dashboards and alerts.

mod contents;
mod dashboards;
mod delivery;
mod requests;
mod traces;

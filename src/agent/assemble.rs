//! definition -> Agent

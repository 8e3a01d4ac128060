use super::*;
use crate::domain::quota::{QuotaRule, Quotas};

fn with(lines: &str) -> String {
    format!("[agents.a]\nmodel = \"scripted:x\"\n{lines}")
}

fn quotas(lines: &str) -> Quotas {
    let config = Directory::with(&[("adjutant.toml", &with(lines))]).load().config;
    config.quotas.quotas(&config.prices)
}

#[test]
fn without_the_section_only_failed_authentications_and_defined_agents_are_limited() {
    let limits = quotas("");
    assert!(limits.failed_authentications_per_minute.is_some());
    let unlimited = Quotas {
        failed_authentications_per_minute: limits.failed_authentications_per_minute,
        per_tenant: QuotaRule {
            defined_agents: Some(500),
            ..QuotaRule::default()
        },
        ..Quotas::default()
    };
    assert_eq!(limits, unlimited);
    assert_eq!(
        quotas("[quotas]\nfailed_authentications_per_minute = 0\n[quotas.per_tenant]\ndefined_agents = 0"),
        Quotas::default()
    );
}

#[test]
fn a_tenant_has_its_own_quotas_and_those_of_all_where_it_has_none() {
    let text = "[quotas.per_tenant]\nruns_waiting = 5\nopen_streams = 7\ncost_per_day = 1.5\n\
                [quotas.tenants.acme]\nruns_waiting = 9\nopen_streams = 0\n[quotas.tenants.other]\ndefined_agents = 9";
    let limits = quotas(text);
    assert_eq!(limits.per_tenant.cost_per_day, Some(1_500_000));
    let acme = limits.tenants["acme"];
    assert_eq!(acme.runs_waiting, Some(9));
    assert_eq!(acme.open_streams, None, "0 is no limit");
    assert_eq!(acme.cost_per_day, Some(1_500_000));
    assert_eq!(acme.defined_agents, Some(500));
    assert_eq!(limits.tenants["other"].defined_agents, Some(9));
}

#[test]
fn mistakes_in_quotas_and_prices_are_named_with_their_place() {
    for (lines, expected) in [
        (
            "[quotas.per_key]\nstored_bytes = 1",
            "quotas.per_key.stored_bytes: does not exist",
        ),
        (
            "[quotas.per_user]\ndefined_agents = 1",
            "quotas.per_user.defined_agents: does not exist",
        ),
        (
            "[quotas.per_user]\nruns_at_work = 2000000000",
            "quotas.per_user.runs_at_work: must be at most 1000000000",
        ),
        (
            "[quotas.per_user]\ncost_per_day = -1.0",
            "quotas.per_user.cost_per_day: must be an amount from 0",
        ),
        (
            "[quotas.tenants.Acme]\nruns_at_work = 1",
            "must be the name of a tenant",
        ),
        ("[prices.gpt]\ninput = 1.0\noutput = 1.0", "must be `provider:model`"),
        (
            "[prices.\"a:*b*\"]\ninput = 1.0\noutput = 1.0",
            "must be `provider:model`",
        ),
        (
            "[prices.\"a:b\"]\ninput = -1.0\noutput = 1.0",
            "input: must be an amount from 0",
        ),
    ] {
        let found = complaints(&with(lines));
        assert!(found.contains(expected), "{lines}\n{found}");
    }
}

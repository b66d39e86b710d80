use super::*;

#[test]
fn thousands_of_lives_keep_their_promises() {
    let mut sum = Summary::default();
    let mut faults = Vec::new();
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..4000 {
        match simulate(seed) {
            Ok(summary) => {
                sum.requests += summary.requests;
                sum.steps += summary.steps;
                sum.preemptions += summary.preemptions;
                sum.prefix_hits += summary.prefix_hits;
                sum.cancelled += summary.cancelled;
                sum.failed += summary.failed;
                sum.finished += summary.finished;
            }
            Err(fault) => faults.push(fault),
        }
    }
    drop(std::panic::take_hook());
    assert!(
        faults.is_empty(),
        "{} seeds failed, the first: {}",
        faults.len(),
        faults[0]
    );
    // The rare things did happen, all of them, often.
    assert!(
        sum.preemptions > 1000 && sum.prefix_hits > 10_000 && sum.cancelled > 1000,
        "{sum:?}"
    );
    assert!(sum.failed > 100 && sum.finished > 20_000, "{sum:?}");
}

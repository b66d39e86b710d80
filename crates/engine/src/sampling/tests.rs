use super::choose::{draw, largest};
use super::*;

fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::greedy();
    params.temperature = 1.0;
    change(&mut params);
    params
}

fn free() -> Conditions<'static> {
    Conditions {
        index: 0,
        banned: &[],
        mask: None,
        logprobs: None,
    }
}

fn choose(params: SamplingParams, row: &[f32], conditions: Conditions<'_>) -> Result<u32, String> {
    let mut row = row.to_vec();
    let chosen = Sampler::new(params, &[]).choose(&mut row, conditions, &mut Scratch::default());
    chosen.map(|(token, _)| token)
}

/// The distribution that the parameters ask for, by plain loops in f64 over sorted lists.
fn naive(params: &SamplingParams, row: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = row
        .iter()
        .map(|x| f64::from(*x) / f64::from(params.temperature))
        .collect();
    let mut p: Vec<f64> = logits.iter().map(|x| x.exp()).collect();
    let normalise = |p: &mut Vec<f64>| {
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|x| *x /= sum);
    };
    normalise(&mut p);
    let keep = |p: &mut Vec<f64>, order: Vec<usize>, kept: usize| {
        order[kept..].iter().for_each(|token| p[*token] = 0.0);
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|x| *x /= sum);
    };
    let by = |p: &[f64], key: &dyn Fn(usize) -> f64| {
        let mut order: Vec<usize> = (0..p.len()).filter(|token| p[*token] > 0.0).collect();
        order.sort_by(|a, b| key(*a).total_cmp(&key(*b)).then(a.cmp(b)));
        order
    };
    let reaching = |p: &[f64], order: &[usize], mass: f32| {
        let mut sum = 0.0;
        let at = order.iter().position(|token| {
            sum += p[*token];
            sum >= f64::from(mass)
        });
        at.map_or(order.len(), |at| at + 1)
    };
    if params.top_k > 0 {
        let order = by(&p, &|token| -p[token]);
        let kept = params.top_k.min(order.len());
        keep(&mut p, order, kept);
    }
    if params.typical_p < 1.0 {
        let entropy: f64 = p.iter().filter(|x| **x > 0.0).map(|x| -x * x.ln()).sum();
        let order = by(&p, &|token| (-p[token].ln() - entropy).abs());
        let kept = reaching(&p, &order, params.typical_p);
        keep(&mut p, order, kept);
    }
    if params.top_p < 1.0 {
        let order = by(&p, &|token| -p[token]);
        let kept = reaching(&p, &order, params.top_p);
        keep(&mut p, order, kept);
    }
    let best = p.iter().copied().fold(0.0, f64::max);
    for x in &mut p {
        *x = if *x < best * f64::from(params.min_p) {
            0.0
        } else {
            *x
        };
    }
    normalise(&mut p);
    p
}

#[test]
fn draws_follow_the_distribution_asked_for() {
    // Logits without ties or sums that lie on a filter's border, in no order.
    let row: Vec<f32> = (0..150)
        .map(|i| ((i * 67 % 150) as f32 * 0.04).powi(2) * 0.19)
        .collect();
    type Change = fn(&mut SamplingParams);
    let cases: [(&str, Change); 12] = [
        ("nothing", |_| {}),
        ("temperature", |p| p.temperature = 0.6),
        ("top_k", |p| p.top_k = 7),
        ("top_k of one", |p| p.top_k = 1),
        ("top_p", |p| p.top_p = 0.8),
        ("tiny top_p", |p| p.top_p = 1e-6),
        ("min_p", |p| p.min_p = 0.2),
        ("typical", |p| p.typical_p = 0.5),
        ("top_p, min_p", |p| (p.top_p, p.min_p) = (0.97, 0.15)),
        ("top_k, top_p", |p| (p.top_k, p.top_p) = (30, 0.7)),
        ("typical, top_p", |p| (p.typical_p, p.top_p) = (0.9, 0.9)),
        ("all", |p| {
            (p.top_k, p.typical_p, p.top_p, p.min_p, p.temperature) = (60, 0.9, 0.95, 0.1, 1.4)
        }),
    ];
    let mut faults = Vec::new();
    for (name, change) in cases {
        let params = params(change);
        let wanted = naive(&params, &row);
        let mut counts = vec![0u32; row.len()];
        let draws = 20_000;
        let mut buffers = Buffers::default();
        let max = scan::peak(&row).value;
        for index in 0..draws {
            counts[draw(&params, &row, max, index, &mut buffers) as usize] += 1;
        }
        for (token, (count, p)) in counts.iter().zip(&wanted).enumerate() {
            let expected = p * draws as f64;
            let allowance = 6.0 * (expected * (1.0 - p)).sqrt() + 2.0;
            let impossible = *p == 0.0 && *count > 0;
            if impossible || (f64::from(*count) - expected).abs() > allowance {
                faults.push(format!(
                    "{name}: token {token}: {count} draws, expected {expected}"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn large_vocabularies_take_the_same_ways() {
    // Nearly flat: the first guesses of the nucleus are far too small, and blocks matter.
    let row: Vec<f32> = (0..70_001).map(|i| ((i * 7919 % 70_001) as f32) * 1e-5).collect();
    type Change = fn(&mut SamplingParams);
    let cases: [(&str, Change); 5] = [
        ("nothing", |_| {}),
        ("top_p", |p| p.top_p = 0.4),
        ("top_k", |p| p.top_k = 20_000),
        ("min_p", |p| p.min_p = 0.8),
        ("typical", |p| p.typical_p = 0.3),
    ];
    let max = scan::peak(&row).value;
    for (name, change) in cases {
        let params = params(change);
        let wanted = naive(&params, &row);
        let mut buffers = Buffers::default();
        let mean: f64 = wanted.iter().zip(&row).map(|(p, x)| p * f64::from(*x)).sum();
        let draws = 300;
        let mut sum = 0.0;
        for index in 0..draws {
            let token = draw(&params, &row, max, index, &mut buffers) as usize;
            // Rounding may move the border by a token or two of nearly equal weight.
            let near = wanted[token] > 0.0
                || (token.saturating_sub(9)..(token + 9).min(row.len())).any(|t| wanted[t] > 0.0);
            assert!(near, "{name}: token {token} is out");
            sum += f64::from(row[token]);
        }
        assert!(
            (sum / draws as f64 - mean).abs() < 0.06,
            "{name}: mean {} instead of {mean}",
            sum / draws as f64
        );
    }
}

#[test]
fn the_largest_come_in_order_with_ties_by_token() {
    for (len, count) in [
        (1, 1),
        (5, 9),
        (63, 3),
        (64, 3),
        (65, 65),
        (1000, 1),
        (1000, 40),
        (5000, 700),
    ] {
        for ties in [1, 7, 1000] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 + i / 3) % ties) as f32).collect();
            let mut wanted: Vec<(f32, u32)> = row.iter().copied().zip(0..).collect();
            wanted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            wanted.truncate(count);
            let mut got = Vec::new();
            largest(&row, count, &mut got);
            assert_eq!(got, wanted, "{len} {count} {ties}");
        }
    }
    let mut got = vec![(1.0, 1)];
    largest(&[1.0], 0, &mut got);
    assert!(got.is_empty());
}

#[test]
fn greedy_takes_the_lower_of_equals() {
    assert_eq!(
        choose(SamplingParams::greedy(), &[1.0, 3.0, 3.0, 0.0], free()),
        Ok(1)
    );
}

#[test]
fn extreme_but_legal_parameters_do_no_harm() {
    let row: Vec<f32> = (0..100).map(|i| i as f32 - 50.0).collect();
    type Change = fn(&mut SamplingParams);
    let cases: [Change; 7] = [
        |p| p.temperature = 1e-40,
        |p| p.temperature = f32::MIN_POSITIVE,
        |p| p.temperature = f32::MAX,
        |p| p.top_k = usize::MAX,
        |p| p.repetition_penalty = 1e-38,
        |p| p.presence_penalty = f32::MAX,
        |p| p.logit_bias = vec![(3, f32::MAX), (4, -f32::MAX)],
    ];
    for (number, change) in cases.into_iter().enumerate() {
        for (top_p, typical_p, min_p) in [(1.0, 1.0, 0.0), (0.5, 1.0, 0.5), (f32::MIN_POSITIVE, 0.5, 1.0)] {
            let mut params = params(change);
            (params.top_p, params.typical_p, params.min_p) = (top_p, typical_p, min_p);
            let mut sampler = Sampler::new(params, &[0, 1, 2, 99]);
            for index in 0..5 {
                let conditions = Conditions { index, ..free() };
                let chosen = sampler.choose(&mut row.clone(), conditions, &mut Scratch::default());
                let (token, _) = chosen.unwrap_or_else(|fault| panic!("case {number}: {fault}"));
                assert!(token < 100);
            }
        }
    }
}

#[test]
fn penalties_count_what_they_should() {
    let row = [2.0, 1.9, -1.0, 1.1];
    // Repetition counts the prompt as well, the others only what was generated.
    for (penalty, prompt, wanted) in [
        (params(|p| p.repetition_penalty = 2.0), vec![0], vec![1, 3, 0]),
        (params(|p| p.repetition_penalty = 2.0), vec![], vec![0, 1, 3]),
        (params(|p| p.presence_penalty = 0.5), vec![0], vec![0, 1, 0]),
        (params(|p| p.presence_penalty = 2.0), vec![0], vec![0, 1, 3, 0, 0]),
        (
            params(|p| p.frequency_penalty = 0.6),
            vec![0],
            vec![0, 1, 0, 1, 3],
        ),
    ] {
        let mut penalty = penalty;
        penalty.temperature = 0.0;
        let name = format!("{penalty:?}");
        let mut sampler = Sampler::new(penalty, &prompt);
        let tokens: Vec<u32> = (0..wanted.len())
            .map(|index| {
                let conditions = Conditions { index, ..free() };
                sampler
                    .choose(&mut row.to_vec(), conditions, &mut Scratch::default())
                    .unwrap()
                    .0
            })
            .collect();
        assert_eq!(tokens, wanted, "{name}");
    }
    // A negative logit is multiplied: the penalty makes it less likely as well.
    let mut penalty = SamplingParams::greedy();
    penalty.repetition_penalty = 3.0;
    let chosen = Sampler::new(penalty, &[0]).choose(&mut [-1.0, -2.0], free(), &mut Scratch::default());
    assert_eq!(chosen.unwrap().0, 1);
}

#[test]
fn reported_logprobs_are_the_models_own() {
    let row: Vec<f32> = vec![0.0, 1.0, 2.0, 2.0, -1.0];
    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    let exact = |token: usize| (f64::from(row[token]) - sum.ln()) as f32;
    let mut params = params(|p| p.logit_bias = vec![(4, 100.0), (4, 1.0), (2, -50.0)]);
    params.repetition_penalty = 1.5;
    let conditions = Conditions {
        logprobs: Some(3),
        ..free()
    };
    let chosen = Sampler::new(params, &[4]).choose(&mut row.clone(), conditions, &mut Scratch::default());
    let (token, logprob) = chosen.unwrap();
    let logprob = logprob.unwrap();
    assert_eq!((token, logprob.token), (4, 4));
    assert!((logprob.logprob - exact(4)).abs() < 1e-6);
    let order: Vec<u32> = logprob.top.iter().map(|(token, _)| *token).collect();
    assert_eq!(order, [2, 3, 1]);
    for (token, got) in &logprob.top {
        assert!((got - exact(*token as usize)).abs() < 1e-6);
    }
    let prompt = token_logprob(&row, 0, 0, &mut Scratch::default()).unwrap();
    assert!((prompt.logprob - exact(0)).abs() < 1e-6 && prompt.top.is_empty());
}

/// Allows what it lists.
struct Only(Vec<u32>);

impl TokenMask for Only {
    fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        if self.0.contains(&u32::MAX) {
            return Err("budget spent".to_owned());
        }
        assert!(allowed.iter().all(|word| *word == 0), "the words come zeroed");
        self.0
            .iter()
            .for_each(|token| allowed[*token as usize / 32] |= 1 << (token % 32));
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<(), String> {
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

#[test]
fn masks_and_bans_leave_what_they_should() {
    let row: Vec<f32> = (0..70).map(|i| -(i as f32)).collect();
    for (allowed, banned, wanted) in [
        (vec![69], vec![], Ok(69)),
        (vec![31, 32, 64], vec![31], Ok(32)),
        (vec![31], vec![31], Ok(31)),
        (vec![5, 9], vec![9, 5, 5], Ok(5)),
        (
            vec![],
            vec![],
            Err("the constraint allows no token here".to_owned()),
        ),
        (vec![u32::MAX], vec![], Err("budget spent".to_owned())),
    ] {
        for params in [
            SamplingParams::greedy(),
            params(|p| p.top_k = 1),
            params(|p| p.top_p = 0.1),
        ] {
            let mut mask = Only(allowed.clone());
            let conditions = Conditions {
                banned: &banned,
                mask: Some(&mut mask),
                ..free()
            };
            assert_eq!(choose(params, &row, conditions), wanted, "{allowed:?} {banned:?}");
        }
    }
    let conditions = Conditions {
        banned: &[0, 1],
        ..free()
    };
    assert_eq!(choose(SamplingParams::greedy(), &row, conditions), Ok(2));
    assert_eq!(
        choose(
            SamplingParams::greedy(),
            &[1.0],
            Conditions {
                banned: &[0],
                ..free()
            }
        ),
        Ok(0)
    );
}

#[test]
fn a_logit_that_is_no_number_is_named() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let row = [0.0, value, 1.0];
        let fault = choose(params(|_| {}), &row, free()).unwrap_err();
        assert!(
            fault.contains("not finite") && fault.contains("token 1"),
            "{fault}"
        );
        assert!(token_logprob(&row, 0, 1, &mut Scratch::default()).is_err());
    }
}

#[test]
fn seeds_and_indices_decide_alone() {
    let row: Vec<f32> = (0..500).map(|i| (i % 13) as f32 * 0.2).collect();
    let tokens = |seed: u64| -> Vec<u32> {
        let mut sampler = Sampler::new(params(|p| p.seed = seed), &[]);
        let mut next = |index| {
            let conditions = Conditions { index, ..free() };
            sampler
                .choose(&mut row.clone(), conditions, &mut Scratch::default())
                .unwrap()
                .0
        };
        (0..20).map(&mut next).collect()
    };
    assert_eq!(tokens(1), tokens(1));
    assert_ne!(tokens(1), tokens(2));
}

//! `exact` gives the same bits however a sequence's tokens are cut into steps and whoever shares
//! them, as long as every step has the same number of rows and every sequence at least two.

mod support;

use skein_engine::Numerics;
use skein_shards::quant::WeightMode;
use support::{LAYERS, Line, Rows, Tiny, distance, pad, rows, step, tokens};

/// Rows of every step.
const FIXED: usize = 8;

fn run(line: &mut Line, sequences: &[Rows]) -> Vec<Vec<f32>> {
    line.run(&pad(step(sequences), FIXED, FIXED))
}

/// Feeds `text` in chunks of these sizes; each step feeds the token before it again, so that it has
/// two rows at least. Returns the logits of every position but the first.
fn feed(line: &mut Line, text: &[i64], chunks: &[usize], company: Option<&[i64]>) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    let mut fed = 1;
    for (index, &chunk) in chunks.iter().cycle().enumerate() {
        if fed == text.len() {
            return logits;
        }
        let end = (fed + chunk).min(text.len());
        let mut mine = rows(&[2, 7, 3], fed - 1, &text[fed - 1..end]);
        mine.sample.remove(0);
        let mut sequences = vec![mine];
        if let Some(company) = company {
            let other = &company[..2 + index % 2];
            if 1 + end - fed + other.len() <= FIXED {
                let at = index % 2;
                sequences.insert(
                    at,
                    Rows {
                        sample: Vec::new(),
                        ..rows(&[0], index % 20, other)
                    },
                );
            }
        }
        logits.extend(run(line, &sequences));
        fed = end;
    }
    unreachable!("chunks cycle");
}

fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits
        .iter()
        .map(|row| row.iter().map(|value| value.to_bits()).collect())
        .collect()
}

#[test]
fn the_same_bits_under_any_chunking_company_and_number_of_stages() {
    let text = tokens(20, 45);
    let company = tokens(21, 3);
    for mode in [WeightMode::F32, WeightMode::Int8, WeightMode::Int4] {
        let tiny = Tiny::new(mode);
        let mut whole = Line(vec![tiny.stage(0..LAYERS, Numerics::Exact)]);
        let wanted = bits(&feed(&mut whole, &text, &[1], None));
        let three = [0..1, 1..2, 2..LAYERS].map(|range| tiny.stage(range, Numerics::Exact));
        for line in [&mut whole, &mut Line(three.into())] {
            for chunks in [vec![1], vec![7], vec![3, 1, 5], vec![2, 6]] {
                for company in [None, Some(&company[..])] {
                    let found = bits(&feed(line, &text, &chunks, company));
                    assert_eq!(found.len(), wanted.len());
                    let first = found.iter().zip(&wanted).position(|(a, b)| a != b);
                    assert_eq!(first, None, "{mode}, chunks {chunks:?}");
                }
            }
        }
    }
}

/// A branch that lies in other slots than its chain adds up its attention in another order. So the
/// first branch has the chain's bits, and the others almost: trees are for `fast`.
#[test]
fn a_trees_first_branch_has_the_bits_of_its_chain() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut line = Line(vec![tiny.stage(0..LAYERS, Numerics::Exact)]);
    let prompt = tokens(22, 20);
    let chain = |line: &mut Line, path: &[i64]| {
        feed(line, &prompt, &[7], None);
        let mut doubled = rows(&[2, 7, 3], 19, &[&prompt[19..], path].concat());
        doubled.sample.remove(0);
        run(line, &[doubled])
    };
    let left = chain(&mut line, &[5, 6]);
    let right = chain(&mut line, &[5, 8]);
    feed(&mut line, &prompt, &[7], None);
    let tree = rows(&[2, 7, 3], 19, &[prompt[19], 5, 6, 8]);
    let tree = run(&mut line, &[tree.tree(&[None, Some(0), Some(1), Some(1)])]);
    assert!(
        bits(&tree[1..3]) == bits(&left),
        "the first branch differs from its chain"
    );
    let difference = distance(&tree[3], &right[1]);
    assert!(difference < 1e-4, "{difference}");
}

//! How far one set of logits is from another, over the positions of one text.

/// Sums over positions.
#[derive(Debug, Clone, Default)]
pub struct Score {
    positions: usize,
    divergence: f64,
    same_top: usize,
    predicted: usize,
    log_probability: f64,
}

impl Score {
    /// Adds one position: the reference's logits, the other's, and the token that really follows, if one does.
    pub fn add(&mut self, reference: &[f32], other: &[f32], next: Option<u32>) {
        let (reference_log_sum, reference_top) = summary(reference);
        let (other_log_sum, other_top) = summary(other);
        let mut divergence = 0.0;
        for (reference, other) in reference.iter().zip(other) {
            let reference = f64::from(*reference) - reference_log_sum;
            let other = f64::from(*other) - other_log_sum;
            divergence += reference.exp() * (reference - other);
        }
        self.positions += 1;
        self.divergence += divergence;
        self.same_top += usize::from(reference_top == other_top);
        if let Some(next) = next {
            self.predicted += 1;
            self.log_probability += f64::from(other[next as usize]) - other_log_sum;
        }
    }

    /// Mean of KL(reference ‖ other), in nats.
    pub fn kl(&self) -> f64 {
        self.divergence / self.positions as f64
    }

    /// The part of the positions with the same likeliest token.
    pub fn top1(&self) -> f64 {
        self.same_top as f64 / self.positions as f64
    }

    /// The other's perplexity over the text.
    pub fn perplexity(&self) -> f64 {
        (-self.log_probability / self.predicted as f64).exp()
    }
}

/// Log of the sum of exponentials, and the position of the largest; of equals the first.
fn summary(logits: &[f32]) -> (f64, usize) {
    let mut top = 0;
    for (at, value) in logits.iter().enumerate() {
        if *value > logits[top] {
            top = at;
        }
    }
    let largest = f64::from(logits[top]);
    let sum: f64 = logits
        .iter()
        .map(|value| (f64::from(*value) - largest).exp())
        .sum();
    (largest + sum.ln(), top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_do_not_diverge_even_when_shifted() {
        let mut score = Score::default();
        score.add(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0], Some(2));
        assert!(score.kl().abs() < 1e-12);
        assert_eq!(score.top1(), 1.0);
    }

    #[test]
    fn divergence_agreement_and_perplexity_are_what_they_are_by_hand() {
        let (ln2, ln3) = (2f32.ln(), 3f32.ln());
        let mut score = Score::default();
        // 1/2, 1/2 against 1/4, 3/4.
        score.add(&[0.0, 0.0], &[0.0, ln3], Some(0));
        // 1/3, 2/3 against itself; nothing follows.
        score.add(&[0.0, ln2], &[0.0, ln2], None);
        let by_hand = 0.5 * (2f64.ln() + (2f64 / 3.0).ln());
        assert!((score.kl() - by_hand / 2.0).abs() < 1e-7);
        assert_eq!(score.top1(), 0.5);
        assert!((score.perplexity() - 4.0).abs() < 1e-5);
    }
}

use super::*;

#[test]
fn the_noise_is_the_same_on_every_platform() {
    // Any change of these values changes the answers of running requests: a new protocol
    // generation.
    let golden: [(u64, u32, u32, u32, u64); 8] = [
        (0, 0, 0, 0, 0xBFE5_C8C4_9649_6466),
        (0, 0, 0, 1, 0x400C_3C20_F5C9_DD59),
        (0, 0, 1, 0, 0xBFE0_DC72_39D7_6240),
        (0, 1, 0, 0, 0xBFCD_86DE_D3EE_4A3B),
        (1, 0, 0, 0, 0x3FF0_1521_5352_C9A1),
        (42, 0, 100, 151_642, 0x3FC0_04E2_9BDF_06F3),
        (
            u64::MAX,
            u32::MAX,
            u32::MAX,
            u32::MAX,
            0x3FF7_A8F2_97E7_82FE,
        ),
        (0x5EED, 3, 4095, 49_151, 0x3FE3_348F_7B2F_71F9),
    ];
    for (seed, choice, position, token, bits) in golden {
        let variate = Noise::new(seed, choice, position).gumbel(token);
        assert_eq!(
            variate.to_bits(),
            bits,
            "({seed}, {choice}, {position}, {token}): {variate} {:#018x}",
            variate.to_bits()
        );
    }
}

#[test]
fn no_variate_exceeds_the_bound_of_its_class() {
    let mut by_class = [0; CLASSES];
    for position in 0..200 {
        let noise = Noise::new(7, 0, position);
        for token in 0..500 {
            let mut class = 0;
            let given = noise.gumbel_if(token, |found| {
                class = found;
                true
            });
            let variate = noise.gumbel(token);
            assert_eq!(given, Some(variate));
            assert!(variate <= CLASS_BOUNDS[class] + 1e-9);
            by_class[class] += 1;
            assert_eq!(noise.gumbel_if(token, |_| false), None);
        }
    }
    // A class is worth its name: each has half of what the one before has.
    assert!((48_000..52_000).contains(&by_class[0]), "{by_class:?}");
    assert!((5_500..7_000).contains(&by_class[3]), "{by_class:?}");
    assert!(gumbel(u64::MAX) <= CLASS_BOUNDS[64]);
}

#[test]
fn the_extremes_of_the_hash_give_finite_noise() {
    assert!((gumbel(u64::MAX) - 36.7).abs() < 0.1);
    assert!((gumbel(0) + 3.6).abs() < 0.1);
}

#[test]
fn variates_have_the_moments_of_a_gumbel_distribution() {
    // Mean 0.57722, variance 1.64493. Over 400,000 draws the standard errors are 0.0020 and 0.0054
    // (kurtosis 5.4); the bounds are five of them.
    let draws = 400_000u32;
    let (mut sum, mut squares) = (0.0, 0.0);
    for index in 0..draws {
        let variate = Noise::new(u64::from(index % 7), index % 3, index / 40).gumbel(index % 40);
        sum += variate;
        squares += variate * variate;
    }
    let mean = sum / f64::from(draws);
    let variance = squares / f64::from(draws) - mean * mean;
    assert!((mean - 0.577_216).abs() < 0.0102, "{mean}");
    assert!((variance - 1.644_934).abs() < 0.028, "{variance}");
}

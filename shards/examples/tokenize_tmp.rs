use skein_shards::store::Store;
use skein_shards::tokenizer::Tokenizer;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let store = Store::open(std::path::Path::new(&a[1])).unwrap();
    let id = store.models()[0].id;
    let m = store.manifest(id).unwrap();
    let t = Tokenizer::of(&m, &store.tokenizer(id).unwrap()).unwrap();
    let text = std::fs::read_to_string(&a[2]).unwrap();
    for i in t.encode(&text, true) { println!("{i}"); }
}

import bayesify as bf
from bayesify.exporting.model_file import read_note


def test_a_smaller_file_is_written_and_evaluates(invoke, run_folder, tmp_path):
    out = tmp_path / "small.safetensors"
    result = invoke("compress", run_folder, "--keep", 0.2, "--out", out)
    assert result.exit_code == 0, result.output
    assert "sparsity" in result.output
    assert bf.sparsity(bf.load(out)).removed >= 0.8
    assert out.stat().st_size < (run_folder / "model.safetensors").stat().st_size
    note = read_note(out)["note"]
    assert note.pop("compressed")["keep"] == 0.2
    assert note == read_note(run_folder / "model.safetensors")["note"]
    assert invoke("evaluate", out, "--num-samples", 2).exit_code == 0


def test_the_default_name_stands_beside_the_model(invoke, run_folder):
    assert invoke("compress", run_folder, "--by", "magnitude", "--keep", 0.5).exit_code == 0
    small = run_folder / "model.small.safetensors"
    assert small.is_file()
    small.unlink()


def test_wrong_choices_are_answered_by_a_sentence(invoke, run_folder, tmp_path):
    out = tmp_path / "x.safetensors"
    result = invoke("compress", run_folder, "--keep", 3, "--out", out)
    assert result.exit_code == 2
    assert "keep must be the share" in result.output
    assert not out.exists()
    net = bf.convert(bf.build_model("mlp", in_features=2, out_features=2), bf.MeanField())
    bf.save(net, out)
    result = invoke("compress", out, "--keep", 0.5)
    assert "does not name a registered model" in result.output

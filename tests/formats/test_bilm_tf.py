"""bilm-tf's files: the originals' numbers, every variant, and round trips without a changed bit."""

import dataclasses
import gzip
import io
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from formats.tiny import PLAIN, WORDS, carried, configs, equal, random_model, run, with_targets
from pretrain.tiny import tiny_recipe, toy_corpus, trainer
from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig, TokenizerConfig, WordConfig
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf
from torchelmo.formats.model import Model

VARIANTS = (
    "plain noskip_tanh one_layer no_projection no_highway three_layers same_width words".split()
)
TF_DUMPS = "basic clipped noskip_tanh one_layer no_projection".split()


def datasets(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


def same_datasets(a, b):
    a, b = datasets(a), datasets(b)
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert array.dtype == b[name].dtype == np.float32
        assert np.array_equal(array.view(np.int32), b[name].view(np.int32)), name


def read(folder, **more):
    """A model of a fixture folder, without the warning of unused options."""
    for part, name in (("vocabulary", "vocab.txt"), ("softmax", "softmax.hdf5")):
        if (folder / name).exists():
            more.setdefault(part, folder / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bilm_tf.read(folder / "options.json", folder / "weights.hdf5", **more)


def save(folder, options, arrays):
    """Write options and datasets as given; return their paths."""
    folder.mkdir(exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return folder


@pytest.fixture
def pair(tmp_path):
    """The options and datasets of a written plain model, to be changed and saved."""
    bilm_tf.write(random_model(), tmp_path / "pair")
    options = json.loads((tmp_path / "pair/options.json").read_text(encoding="utf-8"))
    return options, datasets(tmp_path / "pair/weights.hdf5")


class TestNumbers:
    @pytest.mark.parametrize("name", VARIANTS)
    def test_every_variant(self, fixtures, name):
        model = read(fixtures / name)
        sentences = json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))
        with h5py.File(fixtures / name / "expected.hdf5") as expected:
            for number, layers in enumerate(run(model, sentences)):
                np.testing.assert_allclose(
                    layers, expected[f"reset/{number}"][...], atol=2e-6, rtol=1e-5
                )

    @pytest.mark.parametrize(
        ("folder", "sentences"),
        [
            ("bilm-tf/tests/fixtures/model", "lm_embeddings_sentences.json"),
            ("allennlp/test_fixtures/elmo", "sentences.json"),
        ],
    )
    def test_the_originals_own_vectors(self, shared, folder, sentences):
        folder = shared / "fixtures" / folder
        model = bilm_tf.read(folder / "options.json", folder / "lm_weights.hdf5")
        rows = json.loads((folder / sentences).read_text(encoding="utf-8"))
        batches = [[rows[row][i].split() for row in range(3)] for i in range(10)]
        got = carried(model, batches)
        for row in range(3):
            with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as file:
                for i in range(10):
                    top = np.concatenate(list(file[str(i)][...]), axis=1)
                    np.testing.assert_allclose(got[i][row][-1], top, atol=1e-6, rtol=1e-5)


class TestRoundTrips:
    @pytest.mark.parametrize("name", VARIANTS)
    def test_fixtures(self, fixtures, tmp_path, name):
        model = read(fixtures / name)
        assert bilm_tf.write(model, tmp_path / "out") == []
        again = read(tmp_path / "out")
        assert again.config.training.items() >= model.config.training.items()
        assert dataclasses.replace(again.config, training={}) == dataclasses.replace(
            model.config, training={}
        )
        assert again.vocabulary == model.vocabulary
        assert again.words == model.words
        assert equal(again.tensors, model.tensors)
        assert equal(again.softmax, model.softmax)
        if name != "one_layer":
            same_datasets(tmp_path / "out/weights.hdf5", fixtures / name / "weights.hdf5")
        if model.softmax is not None:
            same_datasets(tmp_path / "out/softmax.hdf5", fixtures / name / "softmax.hdf5")

    @pytest.mark.parametrize("name", TF_DUMPS)
    def test_files_that_bilm_tf_wrote(self, shared, tmp_path, name):
        folder = shared / "fixtures/tf-generated"
        with h5py.File(folder / f"training_{name}.hdf5") as file:
            options = tmp_path / "options.json"
            options.write_text(file.attrs["options"], encoding="utf-8")
            vocabulary = tmp_path / "vocab.txt"
            vocabulary.write_text(file.attrs["vocab"], encoding="utf-8")
        weights = folder / f"dump_weights_{name}.hdf5"
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # bilm-tf's own options are all known
            model = bilm_tf.read(options, weights, vocabulary=vocabulary)
        assert model.config.vocabulary == 32
        bilm_tf.write(model, tmp_path / "out")
        written = json.loads((tmp_path / "out/options.json").read_text(encoding="utf-8"))
        original = json.loads(options.read_text(encoding="utf-8"))
        original["char_cnn"]["n_characters"] = 262
        assert written == original
        if name == "one_layer":
            short, long = datasets(weights), datasets(tmp_path / "out/weights.hdf5")
            part = "RNN_1/RNN/{}LSTMCell/W_P_0"
            assert np.array_equal(short[part.format("")], long[part.format("MultiRNNCell/Cell0/")])
        else:
            same_datasets(tmp_path / "out/weights.hdf5", weights)

    @settings(max_examples=15, deadline=None)
    @given(configs())
    def test_random_models(self, config):
        words = WORDS if config.words is not None else None
        model = random_model(config, words=words)
        with tempfile.TemporaryDirectory() as scratch:
            one, two = Path(scratch, "one"), Path(scratch, "two")
            bilm_tf.write(model, one)
            again = read(one)
            bilm_tf.write(again, two)
            same_datasets(one / "weights.hdf5", two / "weights.hdf5")
            assert (one / "options.json").exists()
        assert equal(again.tensors, model.tensors)
        assert (again.config.lstm, again.config.characters) == (config.lstm, config.characters)
        assert (again.config.words, again.words) == (config.words, words)
        assert again.config.token_projection == config.token_projection

    def test_gates_are_reordered_as_worked_by_hand(self, tmp_path):
        # P 1, H 2: rows x and h, columns i0 i1 j0 j1 f0 f1 o0 o1
        config = ElmoConfig(
            characters=CharacterConfig(dim=1, filters=((1, 3),), highways=0, max_characters=4),
            lstm=LstmConfig(cells=2, projection=1, layers=1),
        )
        bilm_tf.write(random_model(config), tmp_path / "m")
        cell = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"
        with h5py.File(tmp_path / "m/weights.hdf5", "r+") as file:
            file[f"{cell}/W_0"][...] = np.arange(16).reshape(2, 8)
            file[f"{cell}/B"][...] = np.arange(8)
        tensors = read(tmp_path / "m").tensors
        assert tensors["forward_layers.0.input_weight"].flatten().tolist() == [
            *(0, 1, 4, 5, 2, 3, 6, 7)
        ]
        assert tensors["forward_layers.0.recurrent_weight"].flatten().tolist() == [
            *(8, 9, 12, 13, 10, 11, 14, 15)
        ]
        assert tensors["forward_layers.0.bias"].tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


class TestReading:
    @pytest.mark.parametrize("count", [261, 262, None])
    def test_n_characters_does_not_matter(self, tmp_path, pair, count):
        options, arrays = pair
        options["char_cnn"]["n_characters"] = count
        if count is None:
            del options["char_cnn"]["n_characters"]
        assert equal(read(save(tmp_path / "m", options, arrays)).tensors, random_model().tensors)

    def test_a_leading_row_of_zeros(self, tmp_path, pair):
        options, arrays = pair
        arrays["char_embed"] = np.pad(arrays["char_embed"], ((1, 0), (0, 0)))
        assert equal(read(save(tmp_path / "m", options, arrays)).tensors, random_model().tensors)
        arrays["char_embed"][0, 0] = 1
        with pytest.raises(InputError, match="262 rows in 'char_embed' and the first is not zero"):
            read(save(tmp_path / "n", options, arrays))

    @pytest.mark.parametrize("kind", [np.float16, np.float64, ">f4"])
    def test_other_floats_become_float32(self, tmp_path, pair, kind):
        options, arrays = pair
        model = read(save(tmp_path / "m", options, {n: a.astype(kind) for n, a in arrays.items()}))
        for name, tensor in random_model().tensors.items():
            assert model.tensors[name].dtype == torch.float32
            tolerance = 2e-3 if kind == np.float16 else 0
            torch.testing.assert_close(model.tensors[name], tensor, atol=tolerance, rtol=tolerance)

    def test_one_layer_under_both_names(self, tmp_path):
        config = ElmoConfig(
            characters=PLAIN.characters, lstm=LstmConfig(cells=6, projection=4, layers=1)
        )
        bilm_tf.write(random_model(config), tmp_path / "long")
        arrays = datasets(tmp_path / "long/weights.hdf5")
        short = {name.replace("MultiRNNCell/Cell0/", ""): a for name, a in arrays.items()}
        assert short.keys() != arrays.keys()
        options = json.loads((tmp_path / "long/options.json").read_text(encoding="utf-8"))
        del options["lstm"]["n_layers"]  # one is the default
        model = read(save(tmp_path / "short", options, short))
        assert equal(model.tensors, read(tmp_path / "long").tensors)

    def test_a_projection_that_bilm_tf_would_leave_out(self, tmp_path):
        config = ElmoConfig(
            characters=CharacterConfig(dim=2, filters=((1, 4),), max_characters=5),
            lstm=LstmConfig(cells=6, projection=4),
        )
        notes = bilm_tf.write(random_model(config), tmp_path / "m")
        assert len(notes) == 1
        assert "will not read the token projection" in notes[0]
        assert read(tmp_path / "m").config.token_projection

    def test_absent_options_are_bilm_tfs_defaults(self, pair):
        options, _ = pair
        for key in ("n_layers", "cell_clip", "proj_clip", "use_skip_connections"):
            del options["lstm"][key]
        del options["char_cnn"]["n_highway"]
        config = bilm_tf.read_options(options)
        expected = LstmConfig(
            cells=6,
            projection=4,
            layers=1,
            cell_clip=None,
            projection_clip=None,
            residual=False,
        )
        assert config.lstm == expected
        assert config.characters.highways == 0
        assert config.tokenizer == TokenizerConfig(name="words", version="1")

    def test_unused_options_give_one_warning(self, tmp_path, pair):
        options, arrays = pair
        options |= {"reverse": False, "n_epochs": 3, "milestones": []}
        options["char_cnn"]["projection_after_highway"] = True
        options["lstm"]["peepholes"] = False
        folder = save(tmp_path / "m", options, arrays)
        with pytest.warns(UserWarning, match="unused options") as caught:
            model = bilm_tf.read(folder / "options.json", folder / "weights.hdf5")
        (warning,) = caught
        expected = "reverse, milestones, lstm.peepholes, char_cnn.projection_after_highway"
        assert str(warning.message).endswith(f"unused options {expected}")
        assert model.config.training == {"n_epochs": 3}

    def test_foreign_datasets_give_a_warning(self, tmp_path, pair):
        options, arrays = pair
        folder = save(tmp_path / "m", options, {**arrays, "optimizer/step": np.float32(3)})
        with pytest.warns(UserWarning, match="unused datasets optimizer/step"):
            bilm_tf.read(folder / "options.json", folder / "weights.hdf5")

    def test_training_options_are_kept(self, tmp_path):
        training = {"bidirectional": True, "dropout": 0.1, "share_embedding_softmax": False}
        config = ElmoConfig(
            characters=PLAIN.characters, lstm=PLAIN.lstm, training={**training, "hours": 3}
        )
        notes = bilm_tf.write(random_model(config), tmp_path / "m")
        assert notes == ["facts of the training were left out: hours"]
        assert read(tmp_path / "m").config.training == training

    def test_options_and_weights_may_come_open(self, tmp_path):
        model = with_targets(random_model())
        bilm_tf.write(model, tmp_path / "m")
        options = json.loads((tmp_path / "m/options.json").read_text(encoding="utf-8"))
        weights = io.BytesIO((tmp_path / "m/weights.hdf5").read_bytes())
        softmax = io.BytesIO((tmp_path / "m/softmax.hdf5").read_bytes())
        again = bilm_tf.assemble(options, weights, WORDS, softmax)
        assert equal(again.tensors, model.tensors)
        assert equal(again.softmax, model.softmax)


class TestTrainingOptions:
    """What bilm-tf's `train` and `test` read without a default, and what they are told."""

    NEEDED = frozenset(
        "n_tokens_vocab batch_size unroll_steps dropout n_negative_samples_batch "
        "all_clip_norm_val n_epochs n_train_tokens bidirectional lstm char_cnn".split()
    )
    CHARACTERS = frozenset(
        "activation embedding filters max_characters_per_token n_characters n_highway".split()
    )
    LSTM = frozenset("dim projection_dim n_layers cell_clip proj_clip use_skip_connections".split())

    def options(self, training, words=WORDS):
        model = with_targets(random_model(), words)
        return bilm_tf.write_options(dataclasses.replace(model.config, training=training))

    def test_all_are_there(self, tmp_path):
        model = with_targets(random_model())
        bilm_tf.write(model, tmp_path / "m")
        options = json.loads((tmp_path / "m/options.json").read_text(encoding="utf-8"))
        assert options.keys() == self.NEEDED
        assert options["char_cnn"].keys() == self.CHARACTERS
        assert options["char_cnn"]["embedding"].keys() == {"dim"}
        assert options["lstm"].keys() == self.LSTM

    def test_an_unknown_run_is_taken_for_the_original(self):
        words = [*WORDS, *map(str, range(9000))]
        found = self.options({}, words)
        assert {key: found[key] for key in self.NEEDED - {"lstm", "char_cnn"}} == {
            "n_tokens_vocab": len(words),
            "batch_size": 128,
            "unroll_steps": 20,
            "dropout": 0.1,
            "n_negative_samples_batch": 8192,
            "all_clip_norm_val": 10.0,
            "n_epochs": 10,
            "n_train_tokens": 768648884,
            "bidirectional": True,
        }
        # No more can be drawn than there are words.
        assert self.options({})["n_negative_samples_batch"] == len(WORDS)

    def test_without_vocabulary_nothing_is_made_up(self):
        options = bilm_tf.write_options(PLAIN)
        assert options.keys() == {"lstm", "char_cnn"}

    def test_what_the_files_said_stays(self):
        said = {"n_epochs": 3, "batch_size": 7, "n_negative_samples_batch": 9000}
        run = {"recipe": {"train": {"batch": 5, "unroll": 6}}}
        found = self.options({**said, **run})
        assert found.items() >= said.items() and found["unroll_steps"] == 6

    def test_a_run_of_ours_is_told(self, tmp_path):
        corpus = toy_corpus(tmp_path)
        recipe = tiny_recipe(train={"steps": 20}, watch={"validate": 100})
        made = trainer(recipe, corpus, tmp_path / "run")
        made()
        found = bilm_tf.write_options(made.to_model().config)
        text = corpus.train
        assert {key: found[key] for key in found.keys() - {"lstm", "char_cnn"}} == {
            "n_tokens_vocab": 30,
            "batch_size": 4,
            "unroll_steps": 5,
            "dropout": 0.2,
            "n_negative_samples_batch": 12,
            "all_clip_norm_val": 10.0,
            "n_epochs": max(round(20 * 4 * 5 / (text.n_tokens + text.n_sentences)), 1),
            "n_train_tokens": text.n_tokens,
            "bidirectional": True,
            "learning_rate": 0.1,
        }
        notes = bilm_tf.write(made.to_model(), tmp_path / "out")
        assert not any("forward" in note for note in notes)

    def test_other_runs_of_ours(self):
        run = {"train": {"epochs": 6.4, "optimizer": "adamw", "learning_rate": 3e-3}}
        found = self.options({"recipe": run})
        assert found["n_epochs"] == 6 and "learning_rate" not in found
        assert "sample_softmax" not in found and "share_embedding_softmax" not in found
        run = {"train": {"epochs": 0.2, "softmax": "full"}, "model": {"tie": True}}
        found = self.options({"recipe": run})
        assert (found["n_epochs"], found["sample_softmax"]) == (1, False)
        assert found["share_embedding_softmax"] is True

    def test_facts_of_another_shape_are_passed_over(self):
        for training in (
            {"recipe": "mine", "corpus": 3},
            {"recipe": {"train": {"dropout": "much", "batch": True}}},
        ):
            assert self.options(training) == self.options({})

    def test_one_direction_is_said(self, tmp_path):
        model = with_targets(random_model())
        training = {"recipe": {"model": {"directions": "forward"}}}
        config = dataclasses.replace(model.config, training=training)
        notes = bilm_tf.write(dataclasses.replace(model, config=config), tmp_path / "m")
        assert "that only the forward direction was trained: the backward one is random" in notes


class TestWordsAndSoftmax:
    def test_vocabulary_file_as_bilm_tf_reads_it(self):
        data = "<S>\r\n</S>\n  <UNK> \n\nthe\n!!!MAXTERMID\nété".encode()
        expected = ["<S>", "</S>", "<UNK>", "", "the", "été"]
        assert bilm_tf.parse_vocabulary(data, "v") == expected
        assert bilm_tf.parse_vocabulary(gzip.compress(data), "v") == expected

    def test_softmax_in_the_weights_file(self, tmp_path):
        model = with_targets(random_model())
        bilm_tf.write(model, tmp_path / "m")
        options = json.loads((tmp_path / "m/options.json").read_text(encoding="utf-8"))
        both = datasets(tmp_path / "m/weights.hdf5") | datasets(tmp_path / "m/softmax.hdf5")
        again = read(save(tmp_path / "one", options, both))
        assert equal(again.softmax, model.softmax)
        assert again.config.vocabulary == len(WORDS)

    def test_softmax_without_vocabulary(self, tmp_path):
        bilm_tf.write(with_targets(random_model()), tmp_path / "m")
        (tmp_path / "m/vocab.txt").unlink()
        model = read(tmp_path / "m")
        assert (model.vocabulary, model.config.vocabulary) == (None, len(WORDS))

    def test_a_vocabulary_for_prediction_alone_may_be_any(self, tmp_path, pair):
        options, arrays = pair
        folder = save(tmp_path / "m", {**options, "n_tokens_vocab": 99}, arrays)
        (folder / "v.txt").write_text("a\nb\n", encoding="utf-8")
        with pytest.warns(UserWarning, match="v.txt has 2 words, n_tokens_vocab in .* is 99"):
            model = bilm_tf.read(
                folder / "options.json", folder / "weights.hdf5", vocabulary=folder / "v.txt"
            )
        assert model.vocabulary == ["a", "b"]

    def test_word_input(self, fixtures):
        model = read(fixtures / "words")
        assert model.words == model.vocabulary
        assert model.config.words == WordConfig(words=25, dim=7)
        assert model.config.characters is None


class TestWriting:
    def test_forget_bias_is_folded_back(self, tmp_path):
        lstm = LstmConfig(cells=6, projection=4, forget_bias=0.0)
        model = random_model(ElmoConfig(characters=PLAIN.characters, lstm=lstm))
        notes = bilm_tf.write(model, tmp_path / "m")
        assert len(notes) == 1
        assert "forget bias of 0.0 went into the stored bias" in notes[0]
        again = read(tmp_path / "m")
        assert again.config.lstm.forget_bias == 1.0
        name = "backward_layers.1.bias"
        expected = model.tensors[name].clone()
        expected[6:12] -= 1
        assert torch.equal(again.tensors[name], expected)
        sentences = [["a", "small", "test"], ["of", "it"]]
        for old, new in zip(run(model, sentences), run(again, sentences), strict=True):
            np.testing.assert_allclose(new, old, atol=1e-6)

    def test_what_is_left_out_is_said(self, tmp_path):
        config = ElmoConfig(
            characters=PLAIN.characters,
            lstm=PLAIN.lstm,
            tokenizer=TokenizerConfig(name="ko"),
        )
        mixes = {"0.weights": torch.zeros(3), "0.gamma": torch.ones(1)}
        notes = bilm_tf.write(random_model(config, mixes=mixes), tmp_path / "m")
        assert [note.split(" ")[1] for note in notes] == ["learned", "tokeniser"]

    @pytest.mark.parametrize(
        ("config", "sentence"),
        [
            (
                ElmoConfig(characters=CharacterConfig(scheme="codepoints", symbols=3, dim=2)),
                "spells words in bytes, this model in codepoints",
            ),
            (
                ElmoConfig(words=WordConfig(words=8, dim=3)),
                "characters or words, this model both",
            ),
            (
                ElmoConfig(characters=None, words=WordConfig(words=8, dim=3)),
                "this model projects them first",
            ),
            (
                ElmoConfig(lstm=LstmConfig(cells=8, projection=8)),
                "no projection from 8 cells to 8 values",
            ),
            (ElmoConfig(boundaries=("<bos>", "<eos>")), "this model with <bos> and <eos>"),
        ],
    )
    def test_what_cannot_be_held_is_refused(self, tmp_path, config, sentence):
        with pytest.raises(InputError, match=sentence):
            bilm_tf.write(Model(config, {}), tmp_path / "m")
        assert list(tmp_path.iterdir()) == []

    def test_words_that_a_line_cannot_hold(self, tmp_path):
        for word in ("a b\n", "line\nbreak", "\u3000", " a"):
            model = with_targets(random_model(), [*WORDS, word])
            with pytest.raises(InputError, match=r"word 9 of vocab\.txt"):
                bilm_tf.write(model, tmp_path / "m")
        assert list(tmp_path.iterdir()) == []

    def test_input_words_must_be_the_targets(self, tmp_path):
        config = ElmoConfig(
            characters=None,
            words=WordConfig(words=len(WORDS), dim=4),
            lstm=LstmConfig(cells=6, projection=4),
            token_projection=False,
        )
        model = with_targets(random_model(config, words=WORDS[::-1]))
        with pytest.raises(InputError, match="input words are not its targets"):
            bilm_tf.write(model, tmp_path / "m")

    def test_names_of_the_files(self, tmp_path):
        bilm_tf.write(random_model(), tmp_path / "m", options_name="o.json", weights_name="w.hdf5")
        assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["o.json", "w.hdf5"]
        shutil.copy(tmp_path / "m/o.json", tmp_path / "options.json")
        assert (
            bilm_tf.read(tmp_path / "options.json", tmp_path / "m/w.hdf5").config.lstm == PLAIN.lstm
        )

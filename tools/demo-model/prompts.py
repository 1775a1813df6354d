"""What the teacher is asked, and which of its stories are kept."""

from __future__ import annotations

import random
import re

import story_seeds

SYSTEM = (
    "You write stories for children who are four years old. You use short sentences and only easy words that a "
    "small child knows. Every story makes sense, has a beginning, a small problem, and a good ending. You write "
    "only the story, in plain text, with no title and no notes."
)

# Examples that the teacher sees before each request: they set the style, the length and what "makes sense" means.
EXAMPLES = [
    (
        "The story is about a small fox named Max (he), who finds a lantern and gives it back. Max finds a "
        "lantern on the path and wants to keep it. Then he meets an owl who lost it and is sad. Max gives it back "
        "and gets a hug. It happens in the forest. About 120 words.",
        "Once upon a time, there was a small fox named Max. He lived in the forest with his mother. One evening, "
        "Max saw something shiny on the path. It was a lantern! He picked it up, and a warm light filled the "
        'trees. "I want to keep it," said Max. Then he heard someone crying. It was an old owl. "I lost my '
        'lantern," said the owl. "Now I cannot find my way home in the dark." Max looked at the lantern. He '
        'wanted to keep it, but he felt sorry for the owl. "Here is your lantern," he said. The owl smiled and '
        'hugged him with her soft wings. "Thank you, Max. You are a good fox." They walked home together, and the '
        "light showed them the way.",
    ),
    (
        "The story is about a little girl named Anna (she), who is too small to reach a jar of cookies. Anna "
        "wants the cookies, but the jar is too high up. She climbs on a chair and is scared. Her grandmother "
        "helps her, and they share. About 120 words.",
        "Anna was a little girl who loved cookies. One day, her grandmother baked some cookies and put the jar on "
        "the top shelf. Anna stood on her toes, but she could not reach it. She jumped and jumped, but the shelf "
        "was too high. Then Anna saw a chair. She pushed it to the shelf and climbed up. But the chair began to "
        'shake, and Anna was scared. "Grandma, please help me!" she called. Grandma came and held her hand. "You '
        'were smart to ask for help," she said. She took down the jar and gave Anna two cookies. Anna ate one and '
        "gave the other one to her dog. They were both very happy.",
    ),
    (
        "The story is about a lazy bear named Bruno (he), who gets ready for winter. Winter is coming, but Bruno "
        "sleeps all day. When it snows, he is hungry. A squirrel has food but a broken house. Bruno fixes the "
        "house, and she shares. The story has people talking to each other. About 150 words.",
        "It was fall, and the leaves were coming down. All the animals were busy, but Bruno the bear was lazy. He "
        'lay in the sun and slept. "Winter is coming," said the squirrel. "You must find food." "I will do it '
        'tomorrow," said Bruno. The next day, it began to snow. Bruno was cold and hungry, and there was no food '
        'left. He went to the squirrel and said, "I was wrong. Can you help me?" The squirrel was kind. "I have '
        'many nuts," she said, "but the wind broke my house." Bruno was big and strong. He fixed the house with '
        "sticks, and the squirrel gave him a bag full of nuts. They sat by the fire and ate together. That "
        "winter, they were both warm and full. And Bruno never waited for tomorrow again.",
    ),
    (
        "The story is about a robot named Pip (he), who thinks a balloon is something else. Pip sees something "
        "round and red in a tree. He thinks it is the sun and calls a friend. They look closely, and it is only a "
        "balloon. It happens at the park. The story has a funny moment. About 120 words.",
        'One sunny morning, Pip the robot went to the park. He saw something round and red in a tree. "Oh no!" '
        'said Pip. "The sun fell out of the sky!" He ran to his friend Mia. "Come quickly! The sun is stuck in a '
        'tree!" Mia ran to the park with him. When she saw the tree, she began to laugh. "That is not the sun, '
        'Pip. That is a balloon! Look, the sun is up there." Pip looked up. The sun was still in the sky, big and '
        "bright. Pip laughed too. Mia climbed the tree and got the balloon. She tied it to Pip's arm, so it could "
        'not fly away. "Now I have my own little sun," said Pip, and they danced all the way home.',
    ),
]


def seed_number(base: int, index: int) -> int:
    """The number from which all of a story's ingredients follow."""
    return base * 1_000_003 + index


def seed_of(base: int, index: int) -> story_seeds.Seed:
    """The ingredients of story `index` of a run."""
    return story_seeds.make_seed(random.Random(seed_number(base, index)))


def prompt_prefix() -> str:
    """The beginning that all prompts share: system message and examples."""
    shots = "".join(f"<|im_start|>user\nWrite a story. {asked}<|im_end|>\n<|im_start|>assistant\n{story}<|im_end|>\n"
                    for asked, story in EXAMPLES)  # fmt: skip
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{shots}<|im_start|>user\nWrite a story. "


def prompt_rest(seed: story_seeds.Seed) -> str:
    """What follows the prefix, up to the story's given first words."""
    return f"{seed.teacher}<|im_end|>\n<|im_start|>assistant\n{seed.opener}"


BAD = re.compile(
    r"[^A-Za-z .,!?;:'\"\n-]"
    r"|\b(?:AI|language model|[Ww]ord count|[Tt]itle|[Nn]ote:|[Ss]tory is about|words? long|four[- ]year)\b"
    r"|[A-Z]{4,}"
    r"|\b(?:kill|blood|gun|dead|sexy?|drunk|beer|wine|hell|stupid|hate[sd]?)\b"
)


def clean(text: str) -> str | None:
    """The story with its spaces in order, or None if it is not fit for training."""
    text = re.sub(r"[ \t]*\n\s*", "\n", text.strip())
    text = re.sub(r" +", " ", text)
    if BAD.search(text) or text[-1:] not in '.!?"':
        return None
    words = text.split()
    if not 45 <= len(words) <= 320 or max(map(len, words)) > 20 or text.count('"') % 2:
        return None
    sentences = [s.strip().lower() for s in re.split(r"[.!?]+[\"']?\s+", text) if len(s) > 18]
    if len(sentences) < 4 or len(set(sentences)) < len(sentences):
        return None
    grams = list(zip(words, words[1:], words[2:], words[3:]))
    if len(set(grams)) < 0.93 * len(grams):
        return None
    return text if EXAMPLE_GRAMS.isdisjoint(example_grams(text)) else None


def example_grams(text: str, n: int = 7) -> set[tuple]:
    """All runs of n words: a story that shares one with an example was copied."""
    words = re.findall(r"[a-z']+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


EXAMPLE_GRAMS = {gram for _, story in EXAMPLES for gram in example_grams(story.split(". ", 2)[2])}
